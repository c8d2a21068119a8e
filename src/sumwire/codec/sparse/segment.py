"""A shard's entries as bytes: which coordinates, then their values as they are.

A segment is a coded index (kernels/sparse/index_coding.py), zeros up to a multiple of 4 bytes, the values in their
own dtype, and zeros up to a multiple of 4 again. It determines its own length. Where index and entries would be
longer than all coordinates, all are sent: no segment is more than 8 bytes longer than its shard is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.sparse.sharding import Shards
from sumwire.errors import FrameError
from sumwire.kernels import sparse as kernels
from sumwire.kernels.arrays import Buffers

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

KINDS: tuple[np.dtype[np.generic], ...] = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))
"""Dtypes of values on the wire, by number; uint16 holds bfloat16."""


class Entries(NamedTuple):
    """A bitmap of the shard's coordinates, and a value for each set bit."""

    words: Words
    values: NDArray[np.generic]


class Places(NamedTuple):
    """The same for a shard with few entries: their coordinates, ascending, and a value for each."""

    at: NDArray[np.int64]
    values: NDArray[np.generic]


def room(bits: int, itemsize: int) -> int:
    """Most bytes that a segment of `bits` coordinates can take."""
    return _padded(2) + _padded(bits * itemsize)


def sizes(data: Bytes, kind: int, bits: Sequence[int]) -> tuple[int, ...]:
    """Bytes of each of the segments that a trusted peer wrote one after another; `bits` has their coordinates."""
    if len(bits) == 1:
        return (len(data),)
    found, at = [], 0
    for each in bits:
        found.append(measure(data[at:], kind, each)[0])
        at += found[-1]
    return tuple(found)


def write(x: NDArray[np.generic], shards: Shards, shard: int, out: Bytes, buffers: Buffers) -> int:
    """Write one shard of a flat tensor to the front of out; returns the number of bytes."""
    words = buffers.take("words", shards.words(shard), np.uint64)
    values = buffers.take("values", shards.bits[shard], x.dtype)
    count = kernels.gather(x, shards.starts[shard], shards.block, words, values)
    return put(words, values, count, x, shards.starts[shard], shards.block, out)


def put(
    words: Words,
    values: NDArray[np.generic],
    count: int,
    x: NDArray[np.generic],
    starts: NDArray[np.int64],
    block: int,
    out: Bytes,
) -> int:
    """Write these entries of x as a segment, or all coordinates where that is shorter; returns the number of bytes."""
    bits = kernels.bits(starts, block, x.size)
    code = kernels.encode_index(words, bits, out)
    if _padded(len(code)) + count * x.itemsize > room(bits, x.itemsize):
        words = kernels.ones(bits)
        count = kernels.compact(x, starts, block, words, values)
        code = kernels.encode_index(words, bits)
    return join(code, values[:count], out)


def join(code: Bytes, values: NDArray[np.generic], out: Bytes) -> int:
    """Write the segment of an index and its values to the front of out; returns the number of bytes."""
    end = 0
    for piece in (code, values.view(np.uint8)):
        if piece.ctypes.data != out.ctypes.data:  # where the index lies already
            out[end : end + len(piece)] = piece
        filled, end = end + len(piece), _padded(end + len(piece))
        out[filled:end] = 0
    return end


def measure(data: Bytes, kind: int, bits: int) -> tuple[int, int]:
    """Bytes and entries of the segment at the front of data; `FrameError` if it is not a valid one.

    Takes time in proportion to the bytes, and no memory, whatever the number of coordinates or entries it claims.
    """
    count, used = kernels.measure_index(data, bits)
    return _span(data, kind, count, used)[1], count


def read(data: Bytes, kind: int, bits: int, buffers: Buffers) -> Entries:
    """The entries of one segment; `FrameError` if data is not a valid one. The bitmap lies in the buffers."""
    words = buffers.take("bitmap", -(-bits // 64), np.uint64)
    count, used = kernels.decode_index(data, bits, words)
    return Entries(words, _values(data, kind, count, used))


def read_places(data: Bytes, kind: int, bits: int) -> Places:
    """The same as places, in memory in proportion to the bytes of the segment."""
    # Accept no more entries than there can be values for: runs claim any number in a few bytes.
    at, used = kernels.decode_positions(data, bits, len(data) // KINDS[kind].itemsize)
    return Places(at, _values(data, kind, len(at), used))


def positions(words: Words) -> NDArray[np.int64]:
    """The set bits, in order."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def _span(data: Bytes, kind: int, count: int, used: int) -> tuple[slice, int]:
    """Where the values lie behind an index, and where the segment ends, once that is proven to be within data."""
    begin = _padded(used)
    end = begin + count * KINDS[kind].itemsize
    stop = _padded(end)
    if stop > len(data):
        raise FrameError(f"it is truncated: {count} values end at byte {stop} of {len(data)}")
    if any(data[used:begin].tobytes()) or any(data[end:stop].tobytes()):
        raise FrameError("it is damaged: what fills it up to 4 bytes is not 0")
    return slice(begin, end), stop


def _values(data: Bytes, kind: int, count: int, used: int) -> NDArray[np.generic]:
    where, stop = _span(data, kind, count, used)
    if stop != len(data):
        raise FrameError(f"a segment of {len(data)} bytes ends after {stop}: it is of another tensor")
    values = data[where]
    if values.ctypes.data % KINDS[kind].itemsize:
        values = values.copy()
    return values.view(KINDS[kind])


def _padded(length: int) -> int:
    return -(-length // 4) * 4
