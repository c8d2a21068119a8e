"""What the owner of a shard does: add segments in rank order.

Law: the sum has the bits of the dense sum from left to right in float32, s = x0; s += x1; ... Its entries are the
union of the parts' entries, even where they cancel.

A shard is as large as a frame claims, so nothing here may take time or memory by its size alone. Parts with many
entries for the size are added in a dense buffer, parts with few entries at their places: both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.sparse import segment
from sumwire.codec.sparse.segment import Bytes, Entries, Places
from sumwire.codec.sparse.sharding import LARGEST_BLOCK
from sumwire.kernels import sparse as kernels
from sumwire.kernels.arrays import Buffers

Part: TypeAlias = tuple[int, Bytes]
"""The kind of its values, and a segment."""
Ints: TypeAlias = NDArray[np.int64]

DENSE = 4
"""Coordinates per byte that arrived, up to which a dense buffer is faster than sorting places."""
SMALL = 1 << 14
"""Coordinates that cost next to nothing in a dense buffer."""


def add(parts: Sequence[Part], bits: int, buffers: Buffers) -> Bytes:
    """Segments of one shard of `bits` coordinates, in rank order -> the segment of their sum.

    It may lie in the buffers' memory. Takes time and memory in proportion to the parts' bytes.
    """
    if bits > SMALL + DENSE * sum(len(data) for _, data in parts):
        return _at_places([segment.read_places(data, kind, bits) for kind, data in parts], bits)
    return _in_buffer(parts, bits, buffers)


def _at_places(parts: list[Places], bits: int) -> Bytes:
    at, values = _together(parts)
    if len(parts) > 1:
        at, values = _merge(at, values, len(parts))
    code = kernels.encode_positions(at, bits)
    out = np.empty(len(code) + values.nbytes + 8, np.uint8)
    return out[: segment.join(code, values, out)]


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
        _put_alone(total, union, segment.read_places(parts[0][1], parts[0][0], bits))
    else:
        _sum_up(total, union, parts, buffers)
    # The sum is a tensor of its own with one shard, whose blocks follow each other.
    starts = np.arange(0, bits, LARGEST_BLOCK)
    values = buffers.take("values", bits, np.float32)
    count = kernels.compact(total, starts, LARGEST_BLOCK, union, values)
    out: Bytes = buffers.take("sum", segment.room(bits, 4))
    return out[: segment.put(union, values, count, total, starts, LARGEST_BLOCK, out)]


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
            places = [segment.read_places(data, kind, bits) for kind, data in run]
            at, values = _together(places)
            kernels.accumulate_at(total, at, values)
            kernels.set_bits(union, at)
            for part in places:
                negative = _negative_zeros(part, negative)
            continue
        for kind, data in run:
            entries = segment.read(data, kind, bits, buffers)
            kernels.accumulate(total, entries.words, entries.values)
            union |= entries.words
            negative = _negative_zeros(entries, negative)
    # Where all parts have -0.0, so has their sum; any other zero makes it +0.0, which it is already.
    if negative is not None:
        total[negative] = -0.0


def _places(part: Entries | Places) -> Ints:
    return part.at if isinstance(part, Places) else segment.positions(part.words)


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
