"""A shard's entries as bytes: which coordinates, then their values as they are.

A segment is a coded index (kernels/index_coding.py), zeros up to a multiple of 4 bytes, the values in their
own dtype, and zeros up to a multiple of 4 again. It tells its own length. Where index and entries would be
longer than all coordinates, all are sent: no segment is more than 8 bytes longer than its shard is in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.sharding import Shards
from sumwire.errors import FrameError
from sumwire.kernels import sparse as kernels

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Words = NDArray[np.uint64]

KINDS: tuple[np.dtype[np.generic], ...] = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))
"""Of values on the wire, by number; uint16 holds bfloat16."""


class Entries(NamedTuple):
    """A bitmap of the shard's coordinates, and a value for each set bit."""

    words: Words
    values: NDArray[np.generic]
    used: int
    """Bytes of the segment they were read from."""


def write(x: NDArray[np.generic], shards: Shards, shard: int) -> list[Bytes]:
    """One shard of a flat tensor, in pieces."""
    starts, bits = shards.starts[shard], shards.bits[shard]
    words = np.empty(shards.words(shard), np.uint64)
    values = np.empty(bits, x.dtype)
    count = kernels.gather(x, starts, shards.block, words, values)
    if _padded(kernels.index_bytes(words, bits)) + count * x.itemsize >= 4 + bits * x.itemsize and count < bits:
        words = _all_ones(bits)
        count = kernels.compact(x, starts, shards.block, words, values)
    code = kernels.encode_index(words, bits)
    entries = values[:count].view(np.uint8)
    return [code, _zeros(len(code)), entries, _zeros(len(entries))]


def read(data: Bytes, kind: int, shards: Shards, shard: int) -> Entries:
    """The segment at the front of data; `FrameError` if there is none."""
    words = np.empty(shards.words(shard), np.uint64)
    count, used = kernels.decode_index(data, shards.bits[shard], words)
    begin, dtype = _padded(used), KINDS[kind]
    end = begin + count * dtype.itemsize
    stop = _padded(end)
    if stop > len(data):
        raise FrameError(f"segment {shard} is truncated: {count} values end at byte {stop} of {len(data)}")
    if data[used:begin].any() or data[end:stop].any():
        raise FrameError(f"segment {shard} is damaged: what fills it up to 4 bytes is not 0")
    values = data[begin:end]
    if values.ctypes.data % dtype.itemsize:
        values = values.copy()
    return Entries(words, values.view(dtype), stop)


def total(parts: list[Entries], bits: int) -> Floats:
    """The parts' sum in this order, float32, a value for each coordinate of the shard.

    Law: the bits of the dense sum from left to right, s = x0; s += x1; ...
    """
    acc = np.zeros(bits, np.float32)
    if len(parts) == 1:
        # Nothing is added, so nothing may change: adding even 0 would quiet a signalling NaN.
        words, values, _ = parts[0]
        acc[positions(words)] = kernels.widen(values)
        return acc
    for words, values, _ in parts:
        kernels.accumulate(acc, words, values)
    acc[_negative_zeros(parts)] = -0.0
    return acc


def _negative_zeros(parts: list[Entries]) -> NDArray[np.int64]:
    """Where all parts have -0.0, and so has their sum; any other zero makes it +0.0, which it is already."""
    common: NDArray[np.int64] | None = None
    for words, values, _ in parts:
        sign = 1 << (8 * values.itemsize - 1)
        negative = values.view(f"u{values.itemsize}") == sign
        if not negative.any():
            return np.empty(0, np.int64)
        here = positions(words)[negative]
        common = here if common is None else np.intersect1d(common, here, assume_unique=True)
    return np.empty(0, np.int64) if common is None else common


def positions(words: Words) -> NDArray[np.int64]:
    """The set bits, in order."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def _all_ones(bits: int) -> Words:
    words = np.full(-(-bits // 64), ~np.uint64(0), np.uint64)
    if bits % 64:
        words[-1] = (1 << bits % 64) - 1
    return words


def _padded(length: int) -> int:
    return -(-length // 4) * 4


def _zeros(length: int) -> Bytes:
    return np.zeros(_padded(length) - length, np.uint8)
