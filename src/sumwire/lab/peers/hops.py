"""A ring all-reduce that quantizes again at every hop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from sumwire.lab.peers.base import Parts, Vector, bits_of
from sumwire.lab.peers.quantizer import Draw, Quantizer


def shards(size: int, block: int, count: int) -> list[slice]:
    """A tensor in `count` runs of whole blocks, as equal as possible; some are empty if there are fewer blocks.

    >>> shards(10, 4, 2), shards(3, 4, 2)
    ([slice(0, 4, None), slice(4, 10, None)], [slice(0, 0, None), slice(0, 3, None)])
    """
    blocks = -(-size // block)
    edges = [min(size, block * (blocks * k // count)) for k in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def hop(partial: Vector, own: Vector, workers: int, quantizer: Quantizer, draw: Draw) -> Parts:
    """What a worker makes of the partial mean that it received, zeros at first: its own share added, quantized."""
    return quantizer.encode(partial + own * np.float32(1 / workers), draw)


def ring(
    tensors: Sequence[Vector],
    block: int,
    quantizer_of: Callable[[slice], Quantizer],
    draw_of: Callable[[int, slice], Draw],
) -> tuple[Vector, float, float]:
    """The mean as a ring computes it, and the bits that a worker sends to reduce and to gather.

    Shard k starts at worker k + 1, and each next worker decodes the partial sum, adds its own part and quantizes the
    result, until worker k has the whole of it after n - 1 hops. It quantizes that once more, and it travels on
    unchanged to all. So a value is quantized n times (once if there is a single worker). Parts are divided by n before
    they are added, so that sums stay in range.

    By the convention of base.py, bits of the (n - 1) / n of a tensor that a worker sends in either phase are counted as
    those of a whole tensor.
    """
    workers, size = len(tensors), tensors[0].size
    mean = np.empty(size, np.float32)
    reduced = gathered = 0
    for k, shard in enumerate(shards(size, block, workers)):
        length = shard.stop - shard.start
        if not length:
            continue
        quantizer = quantizer_of(shard)
        partial = np.zeros(length, np.float32)
        for step in range(1, workers + 1):
            rank = (k + step) % workers
            parts = hop(partial, tensors[rank][shard], workers, quantizer, draw_of(rank, shard))
            partial = quantizer.decode(parts, length)
            if step < workers:
                reduced += bits_of(parts)
            else:
                gathered += bits_of(parts)
        mean[shard] = partial
    return mean, reduced / (workers - 1) if workers > 1 else gathered, gathered
