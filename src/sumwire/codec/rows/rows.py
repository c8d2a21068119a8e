"""Rows of a table: in and out of tensors and bytes, dealt out to owners, merged and added.

On the wire a segment of rows is their count (8 bytes), their numbers, 4 bytes each (8 in tables of 2**32 rows and
more), then their values as they are, and zeros up to a multiple of 8 bytes: next to rows of many values, shorter
numbers would save little.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.sparse.segment import KINDS
from sumwire.codec.tensors import Tensor, flatten
from sumwire.errors import FrameError, InputError
from sumwire.kernels import sparse as kernels
from sumwire.kernels.hashing import hash64

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class RowSlices(NamedTuple):
    """Some rows of a tensor; all others are zero. What torch calls sparse COO, for those who have no torch."""

    shape: tuple[int, ...]
    numbers: Ints
    """Ascending, each once."""
    values: NDArray[Any]
    """A row of values for each number: float32, float16, or uint16 for bfloat16."""
    rows: int = 0
    """Of the table; default: shape[0]."""

    @property
    def table(self) -> int:
        return self.rows or self.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return int(self.values.dtype.itemsize)


def accepts(x: Tensor) -> bool:
    """Whether this is rows of values that can be summed in float32 without loss."""
    if isinstance(x, RowSlices):
        return x.values.dtype in KINDS
    sparse = str(getattr(x, "layout", "")) == "torch.sparse_coo"
    return sparse and str(x.dtype) in ("torch.float32", "torch.float16", "torch.bfloat16")


def slices_of(x: Tensor) -> RowSlices:
    """The rows of a torch tensor in sparse COO layout, each once."""
    if isinstance(x, RowSlices):
        _check(x)
        return x
    if not accepts(x):
        raise InputError(
            f"a {type(x).__name__} of dtype {getattr(x, 'dtype', None)} and layout {getattr(x, 'layout', None)} has no "
            "rows to add: pass a tensor of layout torch.sparse_coo in float32, float16 or bfloat16, or use "
            "sumwire.Sparse or sumwire.Lattice"
        )
    if x.device.type != "cpu":
        raise InputError(f"a tensor on {x.device} cannot be encoded: move it to the CPU first, x.cpu()")
    x = x.detach().coalesce()
    shape, dims = tuple(x.shape), x.sparse_dim()
    numbers = np.ravel_multi_index(tuple(x.indices().numpy()), shape[:dims])
    values, _ = flatten(x.values())
    width = math.prod(shape[dims:])
    return RowSlices(shape, np.asarray(numbers, np.int64), values.reshape(len(numbers), width), math.prod(shape[:dims]))


def _check(x: RowSlices) -> None:
    """Refuse rows that are not there, or not in order."""
    numbers = np.asarray(x.numbers)
    ascending = len(numbers) < 2 or bool((np.diff(numbers) > 0).all())
    if not ascending or (len(numbers) and not 0 <= int(numbers[0]) <= int(numbers[-1]) < x.table):
        raise InputError(f"row numbers must ascend, each once, within 0..{x.table - 1}: add duplicate rows up first")
    if x.values.ndim != 2 or len(x.values) != len(numbers):
        raise InputError(f"{len(numbers)} row numbers with values of shape {x.values.shape}: pass one row for each")


def like(mean: RowSlices, x: Tensor) -> Tensor:
    """Rows in the kind, shape and dtype of x."""
    if isinstance(x, RowSlices):
        return mean
    torch = sys.modules["torch"]  # loaded already, as x is one of its tensors
    shape, dims = tuple(x.shape), x.sparse_dim()
    indices = torch.from_numpy(np.stack(np.unravel_index(mean.numbers, shape[:dims])).astype(np.int64))
    values = torch.from_numpy(mean.values).reshape(len(mean.numbers), *shape[dims:]).to(x.dtype)
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False).to(x.device)


class Rows(NamedTuple):
    """Numbers, ascending, and as many rows of values."""

    numbers: Ints
    values: NDArray[np.generic]


def no_rows(width: int) -> Rows:
    """Of a sum to which nobody sent any."""
    return Rows(np.empty(0, np.int64), np.empty((0, width), np.float32))


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


def write_segments(parts: Sequence[Rows], table: int) -> Bytes:
    """Segments of rows, one after another."""
    pieces = [np.empty(0, np.uint8)]
    for part in parts:
        values = np.ascontiguousarray(part.values).reshape(-1).view(np.uint8)
        numbers = part.numbers.astype(_numbers(table)).view(np.uint8)
        padding = np.zeros(-(len(numbers) + len(values)) % 8, np.uint8)
        pieces += [np.array([len(part.numbers)], "<u8").view(np.uint8), numbers, values, padding]
    return np.concatenate(pieces)


def read_segments(data: Bytes, count: int, table: int, width: int, dtype: np.dtype[np.generic]) -> list[Rows]:
    """`count` segments of rows; refuses what `write_segments` would not have written."""
    found, at = [], 0
    each = row_bytes(table, width, dtype)
    for segment in range(count):
        if len(data) < at + 8:
            raise FrameError(f"segment {segment} of rows is truncated: its count is missing")
        rows = int(data[at : at + 8].copy().view("<u8")[0])
        if rows > table or rows * each > len(data) - at - 8:
            raise FrameError(f"segment {segment} claims {rows} rows, which {len(data) - at - 8} bytes cannot hold")
        end = at + 8 + rows * each
        found.append(_read(data[at + 8 : end], rows, table, width, dtype))
        padded = end + -(end - at - 8) % 8
        if data[end:padded].any() or padded > len(data):
            raise FrameError(f"segment {segment} of rows is not padded with zeros to a multiple of 8 bytes")
        at = padded
    if at != len(data):
        raise FrameError(f"{len(data) - at} bytes follow the last segment of rows")
    return found


def _read(data: Bytes, count: int, table: int, width: int, dtype: np.dtype[np.generic]) -> Rows:
    split = count * _numbers(table).itemsize
    numbers = data[:split].copy().view(_numbers(table)).astype(np.int64)
    if count and (numbers[-1] >= table or numbers[0] < 0 or bool((np.diff(numbers) <= 0).any())):
        raise FrameError(f"row numbers must ascend within 0..{table - 1}")
    return Rows(numbers, data[split:].copy().view(dtype).reshape(count, width))


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
        at = np.searchsorted(numbers, part.numbers)
        values = kernels.to_float32(part.values.reshape(-1)).reshape(len(at), width)  # width may be 0
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
