"""Rows of a table, summed without loss: what `Sparse` does, for gradients that name their rows themselves.

A row is an entry, whatever it holds. On the wire, rows are their numbers, 4 bytes each (8 in tables of 2**32 rows and
more), then their values as they are: next to rows of many values, shorter numbers would save little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels import sparse as kernels
from sumwire.kernels.hashing import hash64

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """Numbers, ascending, and as many rows of values."""

    numbers: Ints
    values: NDArray[np.generic]


def owners(numbers: Ints, ranks: int) -> Ints:
    """Who adds which row: of every run of `ranks` rows each rank has one, from a rank on that a hash of the run picks.

    >>> sorted(owners(np.arange(3), 3).tolist())
    [0, 1, 2]
    """
    first = hash64(0, numbers // ranks) % np.uint64(ranks)
    return (numbers + first.astype(np.int64)) % ranks


def split(rows: Rows, owner: Ints, ranks: int) -> list[Rows]:
    """Each owner's rows, in their order. One sort, however many ranks there are."""
    order = np.argsort(owner, kind="stable")
    edges = np.cumsum(np.bincount(owner, minlength=ranks))[:-1]
    numbers, values = np.split(rows.numbers[order], edges), np.split(rows.values[order], edges)
    return [Rows(*each) for each in zip(numbers, values, strict=True)]


def row_bytes(table: int, width: int, dtype: np.dtype[np.generic]) -> int:
    """Of each row on the wire."""
    return _numbers(table).itemsize + width * dtype.itemsize


def write(rows: Rows, table: int) -> Bytes:
    """Rows as bytes."""
    values = np.ascontiguousarray(rows.values).reshape(-1)
    return np.concatenate([rows.numbers.astype(_numbers(table)).view(np.uint8), values.view(np.uint8)])


def read(data: Bytes, table: int, width: int, dtype: np.dtype[np.generic]) -> Rows:
    """Rows of so many values each, out of bytes."""
    count = len(data) // row_bytes(table, width, dtype)
    split = count * _numbers(table).itemsize
    numbers, values = data[:split], data[split:]
    if values.ctypes.data % dtype.itemsize:
        values = values.copy()
    return Rows(numbers.copy().view(_numbers(table)).astype(np.int64), values.view(dtype).reshape(count, width))


def _numbers(table: int) -> np.dtype[np.generic]:
    return np.dtype(np.uint32) if table < 1 << 32 else np.dtype(np.int64)


def merge(parts: Sequence[Rows]) -> Rows:
    """Parts that have no row in common, as one."""
    if len(parts) == 1:
        return parts[0]
    numbers = np.concatenate([part.numbers for part in parts])
    order = np.argsort(numbers, kind="stable")
    return Rows(numbers[order], np.concatenate([part.values for part in parts])[order])


def add(parts: Sequence[Rows]) -> Rows:
    """The parts' sum in this order, in float32: the bits of the dense one, s = x0; s += x1; ..."""
    numbers = np.unique(np.concatenate([part.numbers for part in parts]))
    width = parts[0].values.shape[1]
    total, seen = np.empty((len(numbers), width), np.float32), np.zeros(len(numbers), np.int64)
    for part in parts:
        at, values = (
            np.searchsorted(numbers, part.numbers),
            kernels.to_float32(part.values.reshape(-1)).reshape(-1, width),
        )
        again = np.flatnonzero(seen[at])
        here = total[at[again]]
        kernels.accumulate(here.reshape(-1), kernels.ones(here.size), np.ascontiguousarray(values[again]).reshape(-1))
        total[at] = values
        total[at[again]] = here
        seen[at] += 1
    if len(parts) > 1:
        # Who has not sent a row has +0.0 there, which changes -0.0 and quiets a NaN. Few rows are everybody's.
        everybodys = np.flatnonzero(seen == len(parts))
        kept = total[everybodys]
        kernels.accumulate(total.reshape(-1), kernels.ones(total.size), np.zeros(total.size, np.float32))
        total[everybodys] = kept
    return Rows(numbers, total)
