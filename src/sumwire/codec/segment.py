"""A shard's entries as bytes: which coordinates, then their values as they are.

A segment is a coded index (kernels/index_coding.py), zeros up to a multiple of 4 bytes, the values in their
own dtype, and zeros up to a multiple of 4 again. It tells its own length. Where index and entries would be
longer than all coordinates, all are sent: no segment is more than 8 bytes longer than its shard is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.sharding import Shards, deal
from sumwire.errors import FrameError
from sumwire.kernels import sparse as kernels
from sumwire.kernels.slot import Slot

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

KINDS: tuple[np.dtype[np.generic], ...] = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))
"""Of values on the wire, by number; uint16 holds bfloat16."""


class Entries(NamedTuple):
    """A bitmap of the shard's coordinates, and a value for each set bit."""

    words: Words
    values: NDArray[np.generic]
    used: int
    """Bytes of the segment they were read from."""


def write(x: NDArray[np.generic], shards: Shards, shard: int, slot: Slot | None = None) -> list[Bytes]:
    """One shard of a flat tensor, in pieces; the third is in the slot's memory."""
    slot = slot or Slot()
    starts, bits = shards.starts[shard], shards.bits[shard]
    words = slot.take("words", shards.words(shard), np.uint64)
    values = slot.take("values", bits, x.dtype)
    count = kernels.gather(x, starts, shards.block, words, values)
    code = kernels.encode_index(words, bits)
    if _padded(len(code)) + count * x.itemsize > _padded(2) + bits * x.itemsize:
        words = _all_ones(bits)
        count = kernels.compact(x, starts, shards.block, words, values)
        code = kernels.encode_index(words, bits)
    entries = values[:count].view(np.uint8)
    return [code, _zeros(len(code)), entries, _zeros(len(entries))]


def read(data: Bytes, kind: int, shards: Shards, shard: int, slot: Slot | None = None) -> Entries:
    """The segment at the front of data; `FrameError` if there is none. The bitmap is in the slot's memory."""
    words = (slot or Slot()).take("bitmap", shards.words(shard), np.uint64)
    count, used = kernels.decode_index(data, shards.bits[shard], words)
    begin, dtype = _padded(used), KINDS[kind]
    end = begin + count * dtype.itemsize
    stop = _padded(end)
    if stop > len(data):
        raise FrameError(f"it is truncated: {count} values end at byte {stop} of {len(data)}")
    if data[used:begin].any() or data[end:stop].any():
        raise FrameError("it is damaged: what fills it up to 4 bytes is not 0")
    values = data[begin:end]
    if values.ctypes.data % dtype.itemsize:
        values = values.copy()
    return Entries(words, values.view(dtype), stop)


def add(parts: Sequence[tuple[int, Bytes]], shards: Shards, shard: int, slot: Slot | None = None) -> Bytes:
    """Segments (kind, bytes) of one shard, in rank order -> the segment of their sum: what an owner does.

    Law: the sum has the bits of the dense one from left to right in float32, s = x0; s += x1; ...
    """
    slot = slot or Slot()
    total = slot.take("total", shards.bits[shard], np.float32)
    total[:] = 0
    negative: NDArray[np.int64] | None = None
    for kind, data in parts:
        entries = read(data, kind, shards, shard, slot)
        if len(parts) == 1:
            # Nothing is added, so nothing may change: adding even 0 would quiet a signalling NaN.
            total[positions(entries.words)] = kernels.widen(entries.values)
        else:
            kernels.accumulate(total, entries.words, entries.values)
        negative = _negative_zeros(entries, negative)
    # Where all parts have -0.0, so has their sum; any other zero makes it +0.0, which it is already.
    if negative is not None:
        total[negative] = -0.0
    # The sum is a tensor of its own with one shard, whose blocks follow each other.
    return np.concatenate(write(total, deal(len(total), 1, shards.block, 0), 0, slot))


def _negative_zeros(entries: Entries, others: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Coordinates of -0.0, those that the other parts have too."""
    if others is not None and not len(others):
        return others
    sign = 1 << (8 * entries.values.itemsize - 1)
    here = entries.values.view(f"u{entries.values.itemsize}") == sign
    if not here.any():
        return np.empty(0, np.int64)
    mine = positions(entries.words)[here]
    return mine if others is None else np.intersect1d(others, mine, assume_unique=True)


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
