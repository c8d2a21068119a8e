"""The kernels of the Sparse codec, spread over threads.

reference.py says what a shard and its bitmap are and defines every kernel; index_coding.py defines the bitmap's form on
the wire. The union of bitmaps is NumPy's `|`.

>>> import numpy as np
>>> x = np.zeros(100, np.float32)
>>> x[[3, 70]] = 1.5, -2
>>> starts = np.array([0, 64])
>>> words, values = np.empty(2, np.uint64), np.empty(100, np.float32)
>>> gather(x, starts, 64, words, values)
2
>>> code = encode_index(words, bits(starts, 64, x.size))
>>> len(code)
8
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sumwire.errors import MismatchError
from sumwire.kernels import threads
from sumwire.kernels.arrays import AnyArray, Floats, Ints, Words, on_device, to_float32
from sumwire.kernels.backend import dispatch
from sumwire.kernels.sparse import reference

__all__ = ["to_float32"]

bits = reference.bits

accumulate_at = dispatch(reference.accumulate_at)
count = dispatch(reference.count)
set_bits = dispatch(reference.set_bits)
index_bytes = dispatch(reference.index_bytes)
encode_index = dispatch(reference.encode_index)
decode_index = dispatch(reference.decode_index)
encode_positions = dispatch(reference.encode_positions)
decode_positions = dispatch(reference.decode_positions)
measure_index = dispatch(reference.measure_index)

_scan = dispatch(reference.scan)
_compact = dispatch(reference.compact)
_gather = dispatch(reference.gather)
_expand = dispatch(reference.expand)
_accumulate = dispatch(reference.accumulate)


def _edges(total: int, items: int) -> list[int]:
    """Where to cut `items` blocks or words that hold `total` coordinates."""
    pieces = max(1, min(items, threads.pieces(total)))
    return [items * k // pieces for k in range(pieces + 1)]


def _offsets(words: Words, cuts: list[int], values: AnyArray) -> list[int]:
    """The number of bits set before each cut; there must be enough values for all of them."""
    offsets = [int(n) for n in np.cumsum([0] + [count(words[a:b]) for a, b in pairwise(cuts)])]
    if offsets[-1] > len(values):
        raise MismatchError(f"{offsets[-1]} bits are set but there are only {len(values)} values")
    return offsets


class _Shard:
    """A shard's blocks, cut into pieces for threads."""

    def __init__(self, starts: Ints, block: int, size: int) -> None:
        self.starts = np.ascontiguousarray(starts, np.int64)  # callers like starts[k::n]
        self.block, self.size = block, size
        self.edges = _edges(bits(starts, block, size), len(starts))

    def words(self, words: Words, a: int, b: int) -> Words:
        """The bitmap of blocks a..b."""
        per_block = self.block // 64
        return words[a * per_block : b * per_block]

    def begins(self, words: Words, values: AnyArray) -> dict[int, int]:
        """Where the values of each edge's block begin."""
        cuts = [edge * (self.block // 64) for edge in self.edges]
        return dict(zip(self.edges, _offsets(words, cuts, values), strict=True))


def scan(x: AnyArray, starts: Ints, block: int, words: Words) -> None:
    """The bitmap of the shard's non-zeros: see `reference.scan`."""
    shard = _Shard(starts, block, x.size)
    threads.run_between(shard.edges, lambda a, b: _scan(x, shard.starts[a:b], block, shard.words(words, a, b)))


def compact(x: AnyArray, starts: Ints, block: int, words: Words, values: AnyArray) -> int:
    """values[:count] = x at the shard's set bits; returns the count: see `reference.compact`."""
    if on_device(x):
        return _compact(x, starts, block, words, values)
    shard = _Shard(starts, block, x.size)
    begin = shard.begins(words, values)

    def work(a: int, b: int) -> int:
        return _compact(x, shard.starts[a:b], block, shard.words(words, a, b), values[begin[a] : begin[b]])

    return sum(threads.run_between(shard.edges, work))


def gather(x: AnyArray, starts: Ints, block: int, words: Words, values: AnyArray) -> int:
    """`scan` and `compact` in one pass over x; values may be longer than the count, which is returned."""
    if on_device(x):
        return _gather(x, starts, block, words, values)
    shard = _Shard(starts, block, x.size)
    alone = len(shard.edges) == 2

    def work(a: int, b: int) -> tuple[AnyArray, int]:
        # Where a piece's values go is not known until all are counted: each thread fills an array of its own.
        part = values if alone else np.empty(bits(shard.starts[a:b], block, x.size), values.dtype)
        return part, _gather(x, shard.starts[a:b], block, shard.words(words, a, b), part)

    parts = threads.run_between(shard.edges, work)
    total = sum(found for _, found in parts)
    if total > len(values):
        raise MismatchError(f"{total} coordinates are not zero but there is room for only {len(values)} values")
    if not alone:
        np.concatenate([part[:found] for part, found in parts], out=values[:total])
    return total


def expand(
    words: Words, values: Floats, starts: Ints, block: int, out: Floats, divisor: float = 1.0, clean: bool = False
) -> None:
    """The dense shard of values / divisor, at its place in out: see `reference.expand`."""
    if on_device(out):
        _expand(words, values, starts, block, out, divisor, clean)
        return
    shard = _Shard(starts, block, out.size)
    begin = shard.begins(words, values)

    def work(a: int, b: int) -> None:
        here = values[begin[a] : begin[b]]
        _expand(shard.words(words, a, b), here, shard.starts[a:b], block, out, divisor, clean)

    threads.run_between(shard.edges, work)


def accumulate(acc: Floats, words: Words, values: AnyArray) -> None:
    """acc += values at the set bits: see `reference.accumulate`."""
    edges = _edges(acc.size, len(words))
    begin = dict(zip(edges, _offsets(words, edges, values), strict=True))

    def work(a: int, b: int) -> None:
        _accumulate(acc[64 * a : 64 * b], words[a:b], values[begin[a] : begin[b]])

    threads.run_between(edges, work)


def ones(bits: int) -> Words:
    """The bitmap of a shard without zeros."""
    words = np.full(-(-bits // 64), ~np.uint64(0))
    if bits % 64:
        words[-1] = (1 << bits % 64) - 1
    return words


def divide(values: Floats, divisor: float) -> Floats:
    """values / float32(divisor), however the CPU is set to treat denormals; dividing by 1 changes no bit."""
    out = np.empty(values.size, np.float32)
    if values.size:
        block = max(64, 1 << (values.size - 1).bit_length())  # one that holds all
        flat = np.ascontiguousarray(values).reshape(-1)
        expand(ones(values.size), flat, np.zeros(1, np.int64), block, out, divisor)
    return out.reshape(values.shape)
