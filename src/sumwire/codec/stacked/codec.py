"""Several tensors of one shape as the rows of one: what a reduce-scatter averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sumwire.codec.algebra import Bytes, DivideBy, Floats, Missing, Payload, Shape, Span, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.options import same, whole_number
from sumwire.codec.stacked.parts import StackedPayload, StackedResidual, StackedSum, StackedTerms
from sumwire.codec.tensors import Tensor, buffer, shape_of
from sumwire.errors import InputError

MAX_ROWS = 1 << 31


@dataclass(frozen=True)
class Stacked(Codec):
    """Row k of a tensor of shape (rows, ...) is a tensor of its own, encoded by `codec` in round round_id + k.

    Law: `decode` of rows lo..hi has the bits of `codec.decode` of each. So blocks never straddle rows, and a
    reduce-scatter over as many ranks gives each rank its row.

    >>> from sumwire.codec.sparse.codec import Sparse
    >>> codec, x = Stacked(Sparse(1), rows=2), np.array([[1, 0], [0, 2]], np.float32)
    >>> codec.decode(codec.encode(x, codec.propose(x), rank=0))
    array([[1., 0.],
           [0., 2.]], dtype=float32)
    """

    codec: Codec
    rows: int
    workers: int = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec):
            raise InputError(f"codec={self.codec!r} is not a codec: pass a sumwire.Lattice or sumwire.Sparse, say")
        object.__setattr__(self, "rows", whole_number("rows", self.rows, 1, MAX_ROWS))
        object.__setattr__(self, "workers", self.codec.workers)

    @property
    def family(self) -> str:
        return f"stacked-{self.rows}-{self.codec.family}"

    def description(self) -> dict[str, Any]:
        return self.codec.description() | {"rows": self.rows}

    @property
    def headroom(self) -> int:
        return self.codec.headroom

    @property
    def member(self) -> int:
        return self.codec.member

    def with_member(self, member: int) -> Stacked:
        return Stacked(self.codec.with_member(member), self.rows)

    @property
    def sum_form(self) -> str:
        return self.codec.sum_form

    def accepts(self, x: Tensor) -> bool:
        return self.codec.accepts(x)

    def propose(self, x: Tensor) -> StackedTerms:
        self._check(x)
        return StackedTerms(self, tuple(x.shape), tuple(self.codec.propose(row) for row in x))

    def stays_on_device(self, x: Tensor) -> bool:
        return self.codec.stays_on_device(x)

    def refuse(self, shape: Shape) -> StackedTerms:
        return StackedTerms(self, tuple(shape), (self.codec.refuse(shape[1:]),) * self.rows)

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        return sum(self.codec.payload_room(row, itemsize) for row in _own(terms).rows)

    def encode(
        self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> StackedPayload:
        """Every row's payload."""
        self._check(x)
        return self.encode_rows(
            lambda row, its, where: self.codec.encode(x[row], its, rank=rank, round_id=round_id + row, out=where),
            terms,
            rank=rank,
            round_id=round_id,
            out=out,
        )

    def encode_rows(
        self,
        encode: Callable[[int, Terms, Bytes | None], Payload],
        terms: Terms,
        *,
        rank: int,
        round_id: int,
        out: Bytes | None,
    ) -> StackedPayload:
        """A payload of what `encode` makes of each row, its terms and the rest of the memory that was lent."""
        agreed, rows, used = _own(terms), [], 0
        for row, its in enumerate(agreed.rows):
            rows.append(encode(row, its, None if out is None else out[used:]))
            used += rows[-1].nbytes
        data = None if out is None else out[:used]
        return StackedPayload(self, agreed, round_id, rank, tuple(rows), 0, self.rows, data)

    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The means of the rows that the sum covers, one after another."""
        if not isinstance(total, StackedSum | StackedPayload):
            raise InputError(f"decode takes a payload or sum of stacked rows, not {type(total).__name__}")
        shape = (total.hi - total.lo, *total.shape[1:])
        rows: Sequence[Any] = total.rows
        if out is None:
            held: list[Any] = [row.storage if isinstance(row, Sum) else getattr(row, "data", None) for row in rows]
            out = buffer(None, math.prod(shape), np.float32, *held)
        mean = out.reshape(shape)
        for target, row in zip(mean.reshape(len(rows), -1), rows, strict=True):
            self.codec.decode(row, out=target, missing=missing, divide_by=divide_by)
        return mean

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> StackedSum:
        first = parts[0]
        for part in parts:
            same("range of rows", (first.lo, first.hi), (part.lo, part.hi), "add")
        sums, used = [], 0
        for row in range(first.hi - first.lo):
            lanes = self._row_memory(first.terms, first.lo + row)
            where = out[used : used + lanes] if out is not None and lanes else None
            sums.append(self.codec.add([part.rows[row] for part in parts], out=where))
            used += lanes
        count = max((each.count for each in sums), default=first.count)
        return StackedSum(self, first.terms, first.round_id, count, tuple(sums), first.lo, first.hi)

    def _row_memory(self, terms: Terms, row: int) -> int:
        its = _own(terms).rows[row]
        return self.codec.memory(its.size, its, *self._whole(its))

    def _whole(self, terms: Terms) -> Span:
        return 0, self.codec.edges(terms, 1)[-1]

    def _check(self, x: Tensor) -> None:
        shape = shape_of(x)
        if len(shape) < 1 or shape[0] != self.rows:
            raise InputError(
                f"a tensor of shape {shape} does not have {self.rows} rows: pass one, or build Stacked with rows="
                f"{shape[0] if shape else 1}"
            )

    # What aggregators ask. Units are rows.

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        return tuple(self.rows * shard // shards for shard in range(shards + 1))

    def payload_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...] | None:
        sizes = [self.codec.payload_sizes(row, self._whole(row)) for row in _own(terms).rows]
        if any(size is None for size in sizes):
            return None
        return tuple(sum(size[0] for size in sizes[lo:hi] if size) for lo, hi in pairwise(edges))

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> StackedPayload:
        if hi - lo > 1 and self.payload_sizes(terms, range(lo, hi + 1)) is None:
            raise InputError(f"rows {lo}..{hi} cannot be told apart: use as many owners as rows")
        sizes = self.payload_sizes(terms, range(lo, hi + 1)) or (len(data),)
        rows: list[Any] = []
        ends = list(accumulate(sizes))
        for row, size, end in zip(range(lo, hi), sizes, ends, strict=True):
            its, piece = _own(terms).rows[row], data[end - size : end]
            a, b = self._whole(its)
            rows.append(self.codec.read_payload(its, piece, rank=rank, round_id=round_id + row, lo=a, hi=b, kind=kind))
        return StackedPayload(self, _own(terms), round_id, rank, tuple(rows), lo, hi)

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> StackedSum:
        rows = []
        for (lo, hi), data in parts:
            if hi - lo != 1:
                raise InputError(f"rows {lo}..{hi} cannot be told apart: use as many owners as rows")
            its = _own(terms).rows[lo]
            whole = self._whole(its)
            rows.append(self.codec.read_sum(its, [(whole, data)], count=count, round_id=round_id + lo))
        return StackedSum(self, _own(terms), round_id, count, tuple(rows), 0, self.rows)

    def residual(self) -> StackedResidual | None:
        return StackedResidual(self) if self.codec.feedback else None

    @property
    def feedback(self) -> bool:  # type: ignore[override]  # as the rows' codec says
        return self.codec.feedback

    @property
    def agrees(self) -> bool:  # type: ignore[override]  # likewise
        return self.codec.agrees

    def expected_bits(self, size: int) -> tuple[float, float, float] | None:
        bits = self.codec.expected_bits(size // self.rows)
        return None if bits is None else (self.rows * bits[0], self.rows * bits[1], self.rows * bits[2])

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        raise InputError("stacked rows are for reduce-scatters between ranks: over a server, average row by row")

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return size * (hi - lo) // self.rows

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return 0 if terms is None else sum(self._row_memory(terms, row) for row in range(lo, hi))


def _own(terms: Terms) -> StackedTerms:
    if not isinstance(terms, StackedTerms):
        raise InputError(f"a Stacked codec needs its own terms, not {type(terms).__name__}: call propose on it")
    return terms
