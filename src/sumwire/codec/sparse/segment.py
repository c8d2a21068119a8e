"""A shard's entries as bytes, and what the owner of a shard does: add segments in rank order.

A segment is a coded index (kernels/sparse/index_coding.py), zeros up to a multiple of 4 bytes, the values in their
own dtype, and zeros up to a multiple of 4 again. It determines its own length. Where index and entries would be
longer than all coordinates, all are sent: no segment is more than 8 bytes longer than its shard is in memory.

Law of `add`: the sum has the bits of the dense sum from left to right in float32, s = x0; s += x1; ... Its entries are
the union of the parts' entries, even where they cancel. A shard is as large as a frame claims, so nothing here may take
time or memory by its size alone. Parts with many entries for the size are added in a dense buffer, parts with few
entries at their places: both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.sparse.sharding import LARGEST_BLOCK, Shards
from sumwire.codec.tensors import beside, buffer, on_host
from sumwire.errors import FrameError
from sumwire.kernels import sparse as kernels
from sumwire.kernels.arrays import Buffers, on_device

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

KINDS: tuple[np.dtype[np.generic], ...] = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))
"""Dtypes of values on the wire, by number; uint16 holds bfloat16."""

Part: TypeAlias = tuple[int, Bytes]
"""The kind of its values, and a segment."""
Ints: TypeAlias = NDArray[np.int64]

DENSE = 4
"""Coordinates per byte that arrived, up to which a dense buffer is faster than sorting places."""
SMALL = 1 << 14
"""Coordinates that cost next to nothing in a dense buffer."""


class Entries(NamedTuple):
    """A bitmap of the shard's coordinates, and a value for each set bit."""

    words: Words
    values: NDArray[np.generic]


class Places(NamedTuple):
    """The same for a shard with few entries: their coordinates, ascending, and a value for each."""

    at: NDArray[np.int64]
    values: NDArray[np.generic]


def kind_of(x: NDArray[np.generic]) -> int:
    """The number of a flat array's or tensor's dtype."""
    name = str(x.dtype).removeprefix("torch.").replace("bfloat16", "uint16")
    return KINDS.index(np.dtype(name))


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
    """Write one shard of a flat tensor to the front of out; returns the number of bytes.

    Of a tensor on a GPU, only the bitmap and the entries are copied to the host.
    """
    if on_device(x):
        tensor: Any = x
        words, values = buffer(None, shards.words(shard), np.int64, x), tensor.new_empty(shards.bits[shard])
    else:
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
    bits = kernels.bits(starts, block, len(x))
    code = kernels.encode_index(on_host(words).view(np.uint64), bits, out)
    if _padded(len(code)) + count * x.itemsize > room(bits, x.itemsize):
        full = kernels.ones(bits)
        count = kernels.compact(x, starts, block, words_beside(full, x), values)
        code = kernels.encode_index(full, bits)
    return join(code, on_host(values[:count]), out)


def words_beside(words: Words, x: NDArray[np.generic]) -> Words:
    """A bitmap where x lies; on a GPU as int64, which is all that torch has."""
    moved: Words = beside(words.view(np.int64), x) if on_device(x) else words
    return moved


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


def add(parts: Sequence[Part], bits: int, buffers: Buffers) -> Bytes:
    """Segments of one shard of `bits` coordinates, in rank order -> the segment of their sum.

    It may lie in the buffers' memory. Takes time and memory in proportion to the parts' bytes.
    """
    if bits > SMALL + DENSE * sum(len(data) for _, data in parts):
        return _at_places([read_places(data, kind, bits) for kind, data in parts], bits)
    return _in_buffer(parts, bits, buffers)


def _at_places(parts: list[Places], bits: int) -> Bytes:
    at, values = _together(parts)
    if len(parts) > 1:
        at, values = _merge(at, values, len(parts))
    code = kernels.encode_positions(at, bits)
    out = np.empty(len(code) + values.nbytes + 8, np.uint8)
    return out[: join(code, values, out)]


def _together(parts: list[Places]) -> tuple[Ints, NDArray[np.float32]]:
    """All places and values, part by part."""
    at = np.concatenate([np.empty(0, np.int64), *(part.at for part in parts)])
    return at, np.concatenate([np.empty(0, np.float32), *(kernels.to_float32(part.values) for part in parts)])


def _merge(at: Ints, values: NDArray[np.float32], parts: int) -> tuple[Ints, NDArray[np.float32]]:
    """Each place once, with the sum of its values from the first on."""
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    is_first = np.diff(at, prepend=-1) != 0
    where = np.cumsum(is_first) - 1
    at = at[is_first]
    total = np.zeros(len(at), np.float32)
    kernels.accumulate_at(total, where, values)
    # As in `_sum_up`: -0.0 where all parts have it.
    total[np.bincount(where[_is_negative_zero(values)], minlength=len(at)) == parts] = -0.0
    return at, total


def _in_buffer(parts: Sequence[Part], bits: int, buffers: Buffers) -> Bytes:
    total = buffers.take("total", bits, np.float32)
    union = buffers.take("union", -(-bits // 64), np.uint64)
    for array in (total, union):
        array.view(np.uint8).fill(0)
    if len(parts) == 1:
        _put_alone(total, union, read_places(parts[0][1], parts[0][0], bits))
    else:
        _sum_up(total, union, parts, buffers)
    # The sum is a tensor of its own with one shard, whose blocks follow each other.
    starts = np.arange(0, bits, LARGEST_BLOCK)
    values = buffers.take("values", bits, np.float32)
    count = kernels.compact(total, starts, LARGEST_BLOCK, union, values)
    out: Bytes = buffers.take("sum", room(bits, 4))
    return out[: put(union, values, count, total, starts, LARGEST_BLOCK, out)]


def _put_alone(total: NDArray[np.float32], union: NDArray[np.uint64], part: Places) -> None:
    """Nothing is added, so nothing may change: adding even 0 would quiet a signalling NaN."""
    total[part.at] = kernels.to_float32(part.values)
    kernels.set_bits(union, part.at)


def _sum_up(total: NDArray[np.float32], union: NDArray[np.uint64], parts: Sequence[Part], buffers: Buffers) -> None:
    negative: Ints | None = None
    bits = len(total)
    # Choose by each part's own entries: many nearly empty parts must not cost a pass over the shard each.
    for few, run in groupby(parts, lambda part: bits > DENSE * len(part[1])):
        if few:
            places = [read_places(data, kind, bits) for kind, data in run]
            at, values = _together(places)
            kernels.accumulate_at(total, at, values)
            kernels.set_bits(union, at)
            for part in places:
                negative = _negative_zeros(part, negative)
            continue
        for kind, data in run:
            entries = read(data, kind, bits, buffers)
            kernels.accumulate(total, entries.words, entries.values)
            union |= entries.words
            negative = _negative_zeros(entries, negative)
    # Where all parts have -0.0, so has their sum; any other zero makes it +0.0, which it is already.
    if negative is not None:
        total[negative] = -0.0


def _places(part: Entries | Places) -> Ints:
    return part.at if isinstance(part, Places) else positions(part.words)


def _negative_zeros(part: Entries | Places, others: Ints | None) -> Ints:
    """Coordinates of -0.0 in this part and in all others so far."""
    if others is not None and not len(others):
        return others
    here = _is_negative_zero(part.values)
    if not here.any():
        return np.empty(0, np.int64)
    mine = _places(part)[here]
    return mine if others is None else np.intersect1d(others, mine, assume_unique=True)


def _is_negative_zero(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    sign = 1 << (8 * values.itemsize - 1)
    return np.asarray(values.view(f"u{values.itemsize}") == sign)
