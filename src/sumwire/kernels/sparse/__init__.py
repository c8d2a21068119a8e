"""The kernels of the sparse codec, on the best backend and spread over threads.

sparse_reference.py says what a shard and its bitmap are and defines every kernel; index_coding.py
defines the bitmap's form on the wire. The union of bitmaps is NumPy's `|`.

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

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from types import ModuleType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sumwire import kernels
from sumwire.errors import MismatchError
from sumwire.kernels import threads
from sumwire.kernels.lattice.layout import Bytes, Ints
from sumwire.kernels.lattice.reference import AnyArray, Floats
from sumwire.kernels.sparse import reference as sparse_reference
from sumwire.kernels.sparse.reference import Words

bits = sparse_reference.bits
widen = sparse_reference.widen


@lru_cache(maxsize=1)
def backend() -> ModuleType:
    """The module that does the work: beside the one that `kernels` has chosen."""
    if kernels.backend() is kernels.reference:
        return sparse_reference
    from sumwire.kernels.sparse import native as sparse_native

    return sparse_native


def _edges(total: int, items: int) -> list[int]:
    """Where to cut so many blocks or words that hold `total` coordinates."""
    pieces = max(1, min(items, threads.pieces(total)))
    return [items * k // pieces for k in range(pieces + 1)]


def _run(edges: list[int], work: Callable[[int, int], int]) -> list[int]:
    return threads.run([partial(work, a, b) for a, b in pairwise(edges)])


def _offsets(words: Words, cuts: list[int], values: AnyArray) -> list[int]:
    """How many bits are set before each cut; the values must be enough for all of them."""
    counts = [0] + [cast(int, backend().count(words[a:b])) for a, b in pairwise(cuts)]
    offsets = [int(n) for n in np.cumsum(counts)]
    if offsets[-1] > len(values):
        raise MismatchError(f"{offsets[-1]} bits are set but there are only {len(values)} values")
    return offsets


def scan(x: AnyArray, starts: Ints, block: int, words: Words) -> None:
    """The bitmap of the shard's non-zeros: see `sparse_reference.scan`."""
    starts = np.ascontiguousarray(starts, np.int64)  # callers like starts[k::n]
    per_block = block // 64

    def work(a: int, b: int) -> int:
        backend().scan(x, starts[a:b], block, words[a * per_block : b * per_block])
        return 0

    _run(_edges(bits(starts, block, x.size), len(starts)), work)


def compact(x: AnyArray, starts: Ints, block: int, words: Words, values: AnyArray) -> int:
    """values[:count] = x at the shard's set bits; returns the count: see `sparse_reference.compact`."""
    starts = np.ascontiguousarray(starts, np.int64)  # callers like starts[k::n]
    per_block = block // 64
    edges = _edges(bits(starts, block, x.size), len(starts))
    offsets = _offsets(words, [e * per_block for e in edges], values)
    begin = dict(zip(edges, offsets, strict=True))

    def work(a: int, b: int) -> int:
        part = values[begin[a] : begin[b]]
        return cast(int, backend().compact(x, starts[a:b], block, words[a * per_block : b * per_block], part))

    _run(edges, work)
    return offsets[-1]


def gather(x: AnyArray, starts: Ints, block: int, words: Words, values: AnyArray) -> int:
    """`scan` and `compact` in one pass over x; values may be longer than the count, which is returned."""
    starts = np.ascontiguousarray(starts, np.int64)  # callers like starts[k::n]
    per_block = block // 64
    edges = _edges(bits(starts, block, x.size), len(starts))
    parts: dict[int, NDArray[np.generic]] = {}

    def work(a: int, b: int) -> int:
        # Nobody knows yet where this piece's values will go: each thread fills an array of its own.
        part = values if len(edges) == 2 else np.empty(bits(starts[a:b], block, x.size), values.dtype)
        found = cast(int, backend().gather(x, starts[a:b], block, words[a * per_block : b * per_block], part))
        parts[a] = part[:found]
        return found

    counts = _run(edges, work)
    total = sum(counts)
    if total > len(values):
        raise MismatchError(f"{total} coordinates are not zero but there is room for only {len(values)} values")
    if len(edges) > 2:
        np.concatenate([parts[a] for a in edges[:-1]], out=values[:total])
    return total


def expand(
    words: Words, values: Floats, starts: Ints, block: int, out: Floats, divisor: float = 1.0, clean: bool = False
) -> None:
    """The dense shard of values / divisor, at its place in out: see `sparse_reference.expand`."""
    starts = np.ascontiguousarray(starts, np.int64)  # callers like starts[k::n]
    per_block = block // 64
    edges = _edges(bits(starts, block, out.size), len(starts))
    begin = dict(zip(edges, _offsets(words, [e * per_block for e in edges], values), strict=True))

    def work(a: int, b: int) -> int:
        here = slice(a * per_block, b * per_block)
        backend().expand(words[here], values[begin[a] : begin[b]], starts[a:b], block, out, divisor, clean)
        return 0

    _run(edges, work)


def ones(bits: int) -> Words:
    """The bitmap of a shard without zeros."""
    words = np.full(-(-bits // 64), ~np.uint64(0))
    if bits % 64:
        words[-1] = (1 << bits % 64) - 1
    return words


def divide(values: Floats, divisor: float) -> Floats:
    """values / float32(divisor), whatever the caller has told the CPU to do with denormals; 1 changes no bit."""
    out = np.empty(values.size, np.float32)
    if values.size:
        block = max(64, 1 << (values.size - 1).bit_length())  # one that holds all
        flat = np.ascontiguousarray(values).reshape(-1)
        expand(ones(values.size), flat, np.zeros(1, np.int64), block, out, divisor)
    return out.reshape(values.shape)


def accumulate(acc: Floats, words: Words, values: AnyArray) -> None:
    """acc += values at the set bits: see `sparse_reference.accumulate`."""
    edges = _edges(acc.size, len(words))
    begin = dict(zip(edges, _offsets(words, edges, values), strict=True))

    def work(a: int, b: int) -> int:
        backend().accumulate(acc[64 * a : 64 * b], words[a:b], values[begin[a] : begin[b]])
        return 0

    _run(edges, work)


def accumulate_at(acc: Floats, at: Ints, values: AnyArray) -> None:
    """acc[at[i]] += values[i], one after the other: see `sparse_reference.accumulate_at`. Positions must be within."""
    backend().accumulate_at(acc, at, values)


def set_bits(words: Words, at: Ints) -> None:
    """Set the bits at these positions, which must be within."""
    backend().set_bits(words, at)


def count(words: Words) -> int:
    """How many bits are set."""
    return cast(int, backend().count(words))


def index_bytes(words: Words, bits: int) -> int:
    """Length of what `encode_index` returns."""
    return cast(int, backend().index_bytes(words, bits))


def encode_index(words: Words, bits: int, out: Bytes | None = None) -> Bytes:
    """The bitmap as bytes, in the shortest of six ways: see `index_coding`.

    They may lie at the front of `out`, if it has room for them, and then more of it may be overwritten.
    """
    return cast(Bytes, backend().encode_index(words, bits, out))


def decode_index(data: Bytes, bits: int, words: Words) -> tuple[int, int]:
    """The bitmap out of bytes; returns its count and the bytes used: see `index_decoding.decode_index`."""
    return cast("tuple[int, int]", backend().decode_index(data, bits, words))


def encode_positions(at: Ints, bits: int) -> Bytes:
    """`encode_index` of the bitmap that is set at these ascending positions, in time that goes with them alone."""
    return cast(Bytes, backend().encode_positions(at, bits))


def decode_positions(data: Bytes, bits: int, room: int) -> tuple[Ints, int]:
    """The set bits out of bytes, up to `room`, and the bytes used: see `index_decoding.decode_positions`."""
    return cast("tuple[Ints, int]", backend().decode_positions(data, bits, room))


def measure_index(data: Bytes, bits: int) -> tuple[int, int]:
    """`decode_index` without the bitmap: see `index_decoding.measure_index`."""
    return cast("tuple[int, int]", backend().measure_index(data, bits))
