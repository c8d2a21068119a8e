"""How a tensor is spread over shards and cut into parts: workers and aggregators reckon the same."""

from __future__ import annotations

from itertools import pairwise

from sumwire.codec.lattice import Lattice
from sumwire.codec.sketch import Sketch
from sumwire.wire.body import block_count
from sumwire.wire.codecs import AnyCodec

PART = 1 << 23
"""Coordinates: large enough that a part's frame is megabytes, small enough that parts overlap on the wire."""
SEGMENTS = 8
"""Parts that a shard has of a Sparse tensor, at most."""


def spans_of(codec: AnyCodec, size: int, shard: int, shards: int) -> list[tuple[int, int]]:
    """The parts of a tensor that a shard adds, as runs of blocks (of a Sparse: of its own shards).

    >>> codec = Lattice(workers=4, block=512)
    >>> spans_of(codec, 3 << 23, 0, 2), spans_of(codec, 3 << 23, 1, 2)
    ([(0, 16384), (16384, 24576)], [(24576, 40960), (40960, 49152)])
    >>> spans_of(codec, 100, 0, 2), spans_of(codec, 100, 1, 2)
    ([(0, 3)], [])
    """
    if isinstance(codec, Sketch):  # which is never split
        return [(0, 0)] if shard == 0 else []
    if not isinstance(codec, Lattice):
        lo, hi = codec.workers * shard // shards, codec.workers * (shard + 1) // shards
        return _runs(lo, hi, -(-(hi - lo) // SEGMENTS) or 1)
    blocks, whole = block_count(size, codec.block), size // codec.block
    # Only whole blocks are edges: smaller ones may share bytes.
    lo, hi = whole * shard // shards, whole * (shard + 1) // shards
    if not whole:
        return [(0, blocks)] if shard == 0 else []
    runs = _runs(lo, hi, max(1, PART // codec.block))
    if runs and hi == whole:
        runs[-1] = (runs[-1][0], blocks)
    return runs


def coordinates(codec: AnyCodec, size: int, lo: int, hi: int) -> int:
    """Values of the tensor in a part; of a Sparse, whose shards are of nearly one size, about as many.

    >>> codec = Lattice(workers=4, block=512)
    >>> [coordinates(codec, 5000, *span) for shard in (0, 1) for span in spans_of(codec, 5000, shard, 2)]
    [2048, 2952]
    """
    if isinstance(codec, Sketch):
        return size
    if not isinstance(codec, Lattice):
        return size * hi // codec.workers - size * lo // codec.workers
    return min(hi * codec.block, size) - lo * codec.block


def _runs(lo: int, hi: int, step: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(lo, hi, step), hi])) if lo < hi else []
