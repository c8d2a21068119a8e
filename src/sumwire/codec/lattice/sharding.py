"""How a Lattice tensor is cut: into shards that ranks own, or into parts that a server's shards add."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sumwire.codec.algebra import Span, runs_of
from sumwire.codec.lattice.narrow import BESIDE, segment_blocks, segments_of
from sumwire.kernels.lattice.segments import Segments

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice
    from sumwire.codec.lattice.terms import LatticeTerms

PART = 1 << 23
"""Coordinates of a part: its frame takes megabytes, yet sending one part overlaps with adding another."""


def edges(codec: Lattice, terms: LatticeTerms, shards: int) -> tuple[int, ...]:
    """Where to cut so that packed sums of shards are as equally long as whole blocks allow.

    Sums rather than payloads, because all-gather moves equal shares and pads the shorter ones.
    """
    if codec.narrow_bits is not None:
        return _segment_edges(segments_of(terms, codec), shards)
    down = terms.layout(codec).packed_at
    whole = terms.size // codec.block
    wanted = [down[-1] * shard / shards for shard in range(1, shards)]
    # Between whole blocks only: the smaller ones behind them may share bytes.
    inner = np.minimum(np.searchsorted(down, wanted), whole)
    return (0, *inner.tolist(), len(terms.sizes))


def _segment_edges(segments: Segments, shards: int) -> tuple[int, ...]:
    """The same where sums are narrow, which are made of whole segments."""
    down = segments.bytes_at + BESIDE * segments.edges
    wanted = np.array([down[-1] * shard / shards for shard in range(1, shards)])
    # The nearest edge: a whole segment more in one shard would lengthen all rows of the all-gather.
    inner = segments.edges[np.searchsorted((down[1:] + down[:-1]) / 2, wanted)]
    return (0, *inner.tolist(), int(segments.edges[-1]))


def bytes_between(starts: np.ndarray, edges: Sequence[int]) -> tuple[int, ...]:
    """Bytes of each run of blocks, where `starts` says at which bit blocks begin."""
    at = [-(-int(starts[edge]) // 8) for edge in edges]
    return tuple(b - a for a, b in pairwise(at))


def parts(codec: Lattice, size: int, shard: int, shards: int) -> list[Span]:
    """Runs of blocks that a server's shard adds.

    >>> from sumwire.codec.lattice import Lattice
    >>> codec = Lattice(workers=4, block=512)
    >>> parts(codec, 3 << 23, 0, 2), parts(codec, 3 << 23, 1, 2)
    ([(0, 16384), (16384, 24576)], [(24576, 40960), (40960, 49152)])
    >>> parts(codec, 100, 0, 2), parts(codec, 100, 1, 2)
    ([(0, 3)], [])
    """
    blocks, whole = codec.blocks(size), size // codec.block
    # Only whole blocks are edges: smaller ones may share bytes. Narrow sums are made of whole segments.
    step = 1 if codec.narrow_bits is None else segment_blocks(codec.workers, blocks)
    lo, hi = whole * shard // shards // step * step, whole * (shard + 1) // shards // step * step
    hi = whole if shard == shards - 1 else hi
    if not whole:
        return [(0, blocks)] if shard == 0 else []
    runs = runs_of(lo, hi, max(1, PART // codec.block // step) * step)
    if runs and hi == whole:
        runs[-1] = (runs[-1][0], blocks)
    return runs


def coordinates(codec: Lattice, size: int, lo: int, hi: int) -> int:
    """Values in blocks lo..hi.

    >>> from sumwire.codec.lattice import Lattice
    >>> codec = Lattice(workers=4, block=512, down_bits="exact")
    >>> [coordinates(codec, 5000, *span) for shard in (0, 1) for span in parts(codec, 5000, shard, 2)]
    [2048, 2952]
    """
    return max(0, min(hi * codec.block, size) - lo * codec.block)


def lanes_in_memory(codec: Lattice, size: int, terms: LatticeTerms | None, lo: int, hi: int) -> int:
    """Bytes that the lanes of blocks lo..hi take, however few payloads are in them.

    >>> from sumwire.codec.lattice import Lattice
    >>> codec, x = Lattice(workers=4, block=512), np.ones(1024, np.float32)
    >>> lanes_in_memory(codec, 1024, codec.propose(x), 0, 2), lanes_in_memory(codec, 1024, None, 0, 2)
    (1024, 2048)
    """
    if terms is None:
        widest = max(spec.lane_bytes for spec in codec.scheme.lattices if spec is not None)
        return widest * coordinates(codec, size, lo, hi)
    lanes_at = terms.layout(codec).lanes_at
    return int(lanes_at[hi] - lanes_at[lo]) if hi < len(lanes_at) else 0
