"""How a tensor is spread over shards and cut into parts: workers and aggregators reckon the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.sketch.codec import Sketch
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
        lo, hi = codec.shards * shard // shards, codec.shards * (shard + 1) // shards
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


def lanes_in_memory(codec: AnyCodec, size: int, terms: Any, lo: int, hi: int) -> int:
    """Bytes that the lanes of a part's sum take, however few payloads are in it; at most, while terms are not known.

    >>> import numpy as np
    >>> codec, x = Lattice(workers=4, block=512), np.ones(1024, np.float32)
    >>> lanes_in_memory(codec, 1024, codec.propose(x), 0, 2), lanes_in_memory(codec, 1024, None, 0, 2)
    (1024, 2048)
    """
    if not isinstance(codec, Lattice):
        return 0  # sums are as long as their payloads
    if terms is None:
        widest = max(spec.lane_bytes for spec in codec.scheme.lattices if spec is not None)
        return widest * max(0, min(hi * codec.block, size) - lo * codec.block)
    lanes_at = terms.plan(codec).lanes_at
    return int(lanes_at[hi] - lanes_at[lo]) if hi < len(lanes_at) else 0


def coordinates(codec: AnyCodec, size: int, lo: int, hi: int) -> int:
    """Values of the tensor in a part; of a Sparse, whose shards are of nearly one size, about as many.

    >>> codec = Lattice(workers=4, block=512)
    >>> [coordinates(codec, 5000, *span) for shard in (0, 1) for span in spans_of(codec, 5000, shard, 2)]
    [2048, 2952]
    """
    if isinstance(codec, Sketch):
        return size
    if not isinstance(codec, Lattice):
        return size * hi // codec.shards - size * lo // codec.shards
    return min(hi * codec.block, size) - lo * codec.block


def _runs(lo: int, hi: int, step: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(lo, hi, step), hi])) if lo < hi else []
