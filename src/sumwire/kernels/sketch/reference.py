"""The definition of the sketch kernels, in NumPy: slow, short, and the judge of the native ones.

A tensor's coordinates are hashed a block at a time. A block begins at one cell of each of three sub-tables, its lanes
follow in order, and integers add there with wrapping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Floats, Ints, Words
from sumwire.kernels.hashing import hash64

Coordinates = NDArray[np.uint32]
TABLES = 3
GROUP = 64
"""Coordinates that share the words of an index."""

_MASK = (1 << 64) - 1
_CHECK = 0xD6E8FEB86659FD93
_INDEX_STREAM = 0x5851F42D4C957F2D


@dataclass(frozen=True)
class Geometry:
    """Where coordinates of a tensor go: three sub-tables of `table` cells, and an index of `words` words."""

    size: int
    log_block: int
    table: int
    span: int
    """How far apart a block may begin in the three sub-tables: 1..table - block + 1. A short span stays in caches."""
    words: int
    probes: int
    """Words that a group of 64 coordinates sets; 0 means one bit per coordinate, a bitmap."""
    key: int

    @property
    def cells(self) -> int:
        return TABLES * self.table


def cells_of(geometry: Geometry, at: Coordinates) -> Ints:
    """The cell of each coordinate in each of the three sub-tables: an array of shape (3, len(at))."""
    width = 1 << geometry.log_block
    block, lane = (at >> np.uint32(geometry.log_block)).astype(np.int64), (at & np.uint32(width - 1)).astype(np.int64)
    starts = geometry.table - width + 1
    base, more = _below(hash64(geometry.key, 2 * block), starts), hash64(geometry.key, 2 * block + 1)
    out = np.empty((TABLES, len(at)), np.int64)
    out[0] = base
    out[1] = base + _below(more, geometry.span)
    out[2] = base + _below(more << np.uint64(32), geometry.span)
    # Wrap around the end of the sub-table, so that no cell is likelier than another.
    out[:] = out % starts + lane + geometry.table * np.arange(TABLES)[:, None]
    return out


def _below(h: Words, n: int) -> Ints:
    """Numbers below n from the hashes' upper halves."""
    return ((h >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.int64)


def insert(geometry: Geometry, at: Coordinates, values: Ints, cells: Ints) -> None:
    """cells += values, at the three cells of each coordinate. Coordinates ascend."""
    for where in cells_of(geometry, at):
        np.add.at(cells, where, values)


# The index: which coordinates may differ from zero


def _probes(geometry: Geometry, groups: Ints) -> tuple[Ints, Words]:
    """Words of each group, and how far it is rotated there: two arrays of shape (probes, len(groups))."""
    if geometry.probes == 0:
        return groups[None, :], np.zeros((1, len(groups)), np.uint64)
    first = hash64(geometry.key ^ _INDEX_STREAM, groups)
    step = (first << np.uint64(32) | first >> np.uint64(32)) | np.uint64(1)
    h = first[None, :] + step[None, :] * np.arange(geometry.probes, dtype=np.uint64)[:, None]
    return _below(h, geometry.words), h & np.uint64(63)


def mark(geometry: Geometry, at: Coordinates, words: Words) -> None:
    """Set the bits of ascending coordinates in an index."""
    groups, first = np.unique(at >> np.uint32(6), return_index=True)
    if not len(groups):
        return
    bits = np.bitwise_or.reduceat(np.uint64(1) << (at & np.uint32(63)).astype(np.uint64), first)
    for where, turn in zip(*_probes(geometry, groups.astype(np.int64)), strict=True):
        np.bitwise_or.at(words, where, bits << turn | bits >> (np.uint64(64) - turn & np.uint64(63)))


def candidates(geometry: Geometry, words: Words) -> Coordinates:
    """Coordinates that an index does not rule out, ascending."""
    groups = np.arange(-(-geometry.size // GROUP))
    bits = np.full(len(groups), _MASK, np.uint64)
    for where, turn in zip(*_probes(geometry, groups), strict=True):
        word = words[where]
        bits &= word >> turn | word << (np.uint64(64) - turn & np.uint64(63))
    at = np.flatnonzero(np.unpackbits(bits.astype("<u8").view(np.uint8), bitorder="little"))
    return at[at < geometry.size].astype(np.uint32)


# Peeling


def peel(geometry: Geometry, at: Coordinates, cells: Ints, values: Ints, rest: Ints) -> NDArray[np.bool_]:
    """Take out every coordinate that is alone in a cell, again and again; which ones stay is returned.

    `rest` is what `cells` hold without the values found. What stays is the 2-core of the hypergraph, whatever the
    order.
    """
    where = cells_of(geometry, at)
    left = np.ones(len(at), np.bool_)
    degree = np.bincount(where.reshape(-1), minlength=len(cells))
    item = np.zeros(len(cells), np.int64)
    ids = np.arange(len(at))
    for table in where:
        np.bitwise_xor.at(item, table, ids)
    rest[:] = cells
    while len(pure := np.flatnonzero(degree == 1)):
        found, which = np.unique(item[pure], return_index=True)
        worth = rest[pure[which]]
        values[found], left[found] = worth, False
        for table in where:
            np.subtract.at(rest, table[found], worth)
            np.subtract.at(degree, table[found], 1)
            np.bitwise_xor.at(item, table[found], found)
    values[left] = 0
    return left


def checksum(key: int, at: Coordinates, values: Ints) -> int:
    """A wrapping linear function of the values: sums of tensors have the sum of their checksums."""
    h = (at.astype(np.uint64) + np.uint64(key)) * np.uint64(_CHECK)
    h = (h ^ h >> np.uint64(32)) | np.uint64(1)
    return int((h * values.view(np.uint64)).sum(dtype=np.uint64))


# Floats to lattice integers and back


def nonzeros(x: Floats) -> tuple[Coordinates, NDArray[np.uint32]]:
    """Coordinates of the non-zeros, NaN included, ascending; and the float32 words there."""
    at = np.flatnonzero(x.view(np.uint32) << np.uint32(1)).astype(np.uint32)
    return at, x.view(np.uint32)[at]


def quantize(bits: NDArray[np.uint32], exponent: int, lsb: int) -> tuple[Ints, NDArray[np.bool_]]:
    """float32 words as multiples of 2**lsb; and which are not, or have a larger exponent (those give 0)."""
    field = (bits >> np.uint32(23) & np.uint32(255)).astype(np.int64)
    mantissa = (bits & np.uint32(0x7FFFFF)).astype(np.int64) | np.where(field > 0, 1 << 23, 0)
    shift = np.maximum(field, 1) - 150 - lsb
    up, down = np.clip(shift, 0, 62), np.clip(-shift, 0, 63)
    escapes = (field > exponent) | ((mantissa >> down) << down != mantissa)
    whole = np.where(escapes, 0, mantissa << up >> down)
    return np.where(bits >> np.uint32(31) != 0, -whole, whole), escapes


def finish(at: Coordinates, values: Ints, lsb: int, count: int, out: Floats) -> None:
    """out[at] = values * 2**lsb, rounded once to float32, then divided by the count."""
    size = np.abs(values).view(np.uint64)
    # Through float64 without rounding twice: what it cannot hold leaves one sticky bit.
    large = size >> np.uint64(53) != 0
    sticky = (size >> np.uint64(11) | (size & np.uint64(2047) != 0)) << np.uint64(11)
    exact = np.where(large, sticky, size).astype(np.float64) * 2.0**lsb
    with np.errstate(over="ignore", under="ignore"):
        total = np.where(values < 0, -exact, exact).astype(np.float32)
        out[at] = total / np.float32(count)
