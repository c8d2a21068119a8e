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


def room(shards: Shards, shard: int, itemsize: int) -> int:
    """Bytes of the shard's segment, at most."""
    return _padded(2) + _padded(shards.bits[shard] * itemsize)


def write(x: NDArray[np.generic], shards: Shards, shard: int, out: Bytes, slot: Slot) -> int:
    """One shard of a flat tensor, at the front of out; returns how many bytes."""
    words = slot.take("words", shards.words(shard), np.uint64)
    values = slot.take("values", shards.bits[shard], x.dtype)
    count = kernels.gather(x, shards.starts[shard], shards.block, words, values)
    return _put(words, values, count, x, shards, shard, out)


def _put(
    words: Words,
    values: NDArray[np.generic],
    count: int,
    x: NDArray[np.generic],
    shards: Shards,
    shard: int,
    out: Bytes,
) -> int:
    """A segment of these entries of x; of all coordinates, where that is shorter."""
    bits = shards.bits[shard]
    code = kernels.encode_index(words, bits, out)
    if _padded(len(code)) + count * x.itemsize > _padded(2) + bits * x.itemsize:
        words = kernels.ones(bits)
        count = kernels.compact(x, shards.starts[shard], shards.block, words, values)
        code = kernels.encode_index(words, bits)
    end = 0
    for piece in (code, values[:count].view(np.uint8)):
        if piece.ctypes.data != out.ctypes.data:  # where the index lies already
            out[end : end + len(piece)] = piece
        filled, end = end + len(piece), _padded(end + len(piece))
        out[filled:end] = 0
    return end


def read(data: Bytes, kind: int, shards: Shards, shard: int, slot: Slot) -> Entries:
    """The segment at the front of data; `FrameError` if there is none. The bitmap is in the slot's memory."""
    words = slot.take("bitmap", shards.words(shard), np.uint64)
    # No code of an index is longer than this, and a slow reader shall not look at other segments.
    data = data[: 2 * room(shards, shard, 4) + 64]
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


def add(parts: Sequence[tuple[int, Bytes]], shards: Shards, shard: int, slot: Slot) -> Bytes:
    """Segments (kind, bytes) of one shard, in rank order -> the segment of their sum: what an owner does.

    Law: the sum has the bits of the dense one from left to right in float32, s = x0; s += x1; ... Its entries are
    the union of the parts', even where they cancel: who sent one gets one back. It is in the slot's memory.
    """
    total = slot.take("total", shards.bits[shard], np.float32)
    union = slot.take("union", shards.words(shard), np.uint64)
    for array in (total, union):
        array.view(np.uint8).fill(0)
    negative: NDArray[np.int64] | None = None
    for kind, data in parts:
        entries = read(data, kind, shards, shard, slot)
        if entries.used != len(data):
            raise FrameError(f"a segment of {len(data)} bytes ends after {entries.used}: it is of another tensor")
        union |= entries.words
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
    alone = deal(len(total), 1, shards.block, 0)
    values = slot.take("values", len(total), np.float32)
    count = kernels.compact(total, alone.starts[0], alone.block, union, values)
    out: Bytes = slot.take("sum", room(alone, 0, 4))
    return out[: _put(union, values, count, total, alone, 0, out)]


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


def _padded(length: int) -> int:
    return -(-length // 4) * 4
