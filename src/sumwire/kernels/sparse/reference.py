"""The definition of the sparse kernels, in NumPy: slow, short, and the judge of the native ones.

A *shard* is an ascending list of a tensor's blocks, given by `starts`, the first coordinate of each.
Its coordinates are those blocks laid end to end. Its *bitmap* says which of them are non-zero: bit j of
word w is coordinate 64 * w + j, and bits beyond the last coordinate are 0. Non-zero means that the raw
bits are not all zero, so -0.0 and NaN count. index_coding.py has the bitmap's form on the wire.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import AnyArray, Floats, Ints, Words, to_float32
from sumwire.kernels.sparse.index_coding import encode_index, encode_positions, index_bytes
from sumwire.kernels.sparse.index_decoding import decode_index, decode_positions, measure_index

__all__ = [
    "accumulate",
    "accumulate_at",
    "compact",
    "count",
    "decode_index",
    "decode_positions",
    "encode_index",
    "encode_positions",
    "expand",
    "gather",
    "index_bytes",
    "measure_index",
    "scan",
    "set_bits",
]

_QUIET = np.uint32(1 << 22)
_INVALID = np.uint32(0xFFC00000)
"""What x86 makes of Inf - Inf."""


def bits(starts: Ints, block: int, size: int) -> int:
    """Coordinates of the shard: all blocks are whole but the tensor's last one."""
    return 0 if not len(starts) else (len(starts) - 1) * block + min(block, size - int(starts[-1]))


def _coordinates(starts: Ints, block: int, size: int) -> Ints:
    at = (starts[:, None] + np.arange(block)[None, :]).reshape(-1)
    return at[: bits(starts, block, size)]


def _flags(words: Words, size: int) -> NDArray[np.bool_]:
    """The bitmap, one bool per coordinate."""
    return np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little", count=size).view(np.bool_)


def _raw(x: AnyArray) -> NDArray[np.unsignedinteger]:
    return x.view(np.dtype(f"u{x.itemsize}"))


def scan(x: AnyArray, starts: Ints, block: int, words: Words) -> None:
    """The bitmap of the shard's non-zeros."""
    flags = np.zeros(64 * len(words), np.bool_)
    entries = _raw(x)[_coordinates(starts, block, x.size)] != 0
    flags[: len(entries)] = entries
    words[:] = np.packbits(flags, bitorder="little").view("<u8")


def compact(x: AnyArray, starts: Ints, block: int, words: Words, values: AnyArray) -> int:
    """values[:count] = the shard's coordinates whose bit is set, as far as they fit; returns the count."""
    at = _coordinates(starts, block, x.size)
    at = at[_flags(words, len(at))]
    fit = min(len(at), len(values))
    _raw(values)[:fit] = _raw(x)[at[:fit]]
    return len(at)


def gather(x: AnyArray, starts: Ints, block: int, words: Words, values: AnyArray) -> int:
    """`scan` and `compact` in one."""
    scan(x, starts, block, words)
    return compact(x, starts, block, words, values)


def expand(
    words: Words, values: Floats, starts: Ints, block: int, out: Floats, divisor: float = 1.0, clean: bool = False
) -> None:
    """out = values / divisor at the shard's set bits and +0.0 at its other coordinates.

    The division is IEEE's in float32; a divisor of 1 changes no bit, not even of a NaN. `clean` says that out is
    already +0.0 at those other coordinates, which then need not be written.
    """
    at = _coordinates(starts, block, out.size)
    flags = _flags(words, len(at))
    found = values[: int(flags.sum())]
    with np.errstate(all="ignore"):
        scaled = found if np.float32(divisor) == 1 else found / np.float32(divisor)
    raw = np.zeros(len(at), np.uint32)
    raw[flags] = scaled.view(np.uint32)
    out.view(np.uint32)[at] = raw


def accumulate(acc: Floats, words: Words, values: AnyArray) -> None:
    """acc += float32(values) at the set bits; acc has one float per coordinate of the shard.

    A NaN in acc stays, then a NaN in values wins, both with their quiet bit set.
    """
    at = np.flatnonzero(_flags(words, acc.size))
    accumulate_at(acc, at, values[: len(at)])


def accumulate_at(acc: Floats, at: Ints, values: AnyArray) -> None:
    """acc[at[i]] += float32(values[i]) for one i after the other, with `accumulate`'s NaNs; positions may repeat.

    They must be within acc.
    """
    order = np.argsort(at, kind="stable")
    firsts = np.flatnonzero(np.diff(at[order], prepend=-1))
    # Rounds in which no position repeats: every position's first value, its second, and so on.
    turn = np.empty(len(at), np.int64)
    turn[order] = np.arange(len(at)) - np.repeat(firsts, np.diff(firsts, append=len(at)))
    for this in range(int(turn.max(initial=-1)) + 1):
        _add(acc, at[turn == this], to_float32(values[turn == this]))


def _add(acc: Floats, at: Ints, v: Floats) -> None:
    """acc[at] += v at positions that do not repeat."""
    a = acc[at]
    with np.errstate(all="ignore"):
        total = (a + v).view(np.uint32)
    total[np.isnan(total.view(np.float32))] = _INVALID
    total = np.where(np.isnan(v), v.view(np.uint32) | _QUIET, total)
    acc.view(np.uint32)[at] = np.where(np.isnan(a), a.view(np.uint32) | _QUIET, total)


def set_bits(words: Words, at: Ints) -> None:
    """Set the bits at these positions, which must be within words."""
    np.bitwise_or.at(words, at >> 6, np.uint64(1) << (at & 63).astype(np.uint64))


def count(words: Words) -> int:
    """The number of set bits."""
    return int(np.unpackbits(words.view(np.uint8)).sum(dtype=np.int64))
