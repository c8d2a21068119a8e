"""The Terms, Payload, Sum and Residual of stacked rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Payload, Sum, Terms
from sumwire.codec.options import same
from sumwire.codec.tensors import Tensor, concatenated, stacked

if TYPE_CHECKING:
    from sumwire.codec.stacked.codec import Stacked


@dataclass(frozen=True, eq=False)
class StackedTerms(Terms):
    """The terms of every row."""

    codec: Stacked
    rows: tuple[Terms, ...]

    @property
    def joined_by(self) -> Literal["max", "or"]:  # type: ignore[override]  # as the rows' own
        return self.rows[0].joined_by

    @property
    def words(self) -> NDArray[Any]:
        return np.concatenate([row.words for row in self.rows])

    def with_words(self, words: NDArray[Any]) -> StackedTerms:
        rows = tuple(row.with_words(part) for row, part in zip(self.rows, self._split(words), strict=True))
        return StackedTerms(self.codec, self.shape, rows)

    def _split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """The rows' shares, which are equal: all rows have the same shape."""
        return np.split(values, len(self.rows))

    @property
    def bases(self) -> NDArray[np.int32] | None:
        rows = [row.bases for row in self.rows]
        return None if rows[0] is None else np.concatenate([row for row in rows if row is not None])

    def codes(self, bases: NDArray[np.int32]) -> Bytes:
        return np.concatenate([row.codes(own) for row, own in zip(self.rows, self._split(bases), strict=True)])

    def with_codes(self, bases: NDArray[np.int32], codes: Bytes) -> StackedTerms:
        shares = zip(self.rows, self._split(bases), self._split(codes), strict=True)
        return StackedTerms(self.codec, self.shape, tuple(row.with_codes(*share) for row, *share in shares))

    @property
    def encodable(self) -> bool:
        return all(row.encodable for row in self.rows)

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows) if self.encodable else 0

    @cached_property
    def digest(self) -> int:
        return hash(tuple(row.digest for row in self.rows)) & (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class StackedPayload(Payload):
    """The payloads of rows lo..hi."""

    codec: Stacked
    rows: tuple[Payload, ...] = field(repr=False)
    lo: int
    hi: int
    data: Bytes | None = field(default=None, repr=False)
    """All rows' bytes one after another, where they lie so."""

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    @property
    def value_kind(self) -> int:
        return self.rows[0].value_kind if self.rows else 0

    def part(self, lo: int, hi: int) -> StackedPayload:
        rows = self.rows[lo - self.lo : hi - self.lo]
        return StackedPayload(self.codec, self.terms, self.round_id, self.rank, rows, lo, hi)

    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        inner = self.codec.codec
        pieces = [row.cut((0, inner.edges(row.terms, 1)[-1]))[0] for row in self.rows]
        sizes = tuple(sum(map(len, pieces[lo - self.lo : hi - self.lo])) for lo, hi in pairwise(edges))
        if self.data is not None and sum(sizes) == len(self.data):
            return self.data, sizes
        return concatenated(pieces), sizes


@dataclass(frozen=True, eq=False)
class StackedSum(Sum):
    """The sums of rows lo..hi."""

    codec: Stacked
    rows: tuple[Sum, ...] = field(repr=False)
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    def packed(self, out: Bytes | None = None) -> Bytes:
        return concatenated([row.packed() for row in self.rows])

    @property
    def storage(self) -> Any:
        return self.rows[0].storage if self.rows else None

    def narrow(self) -> StackedSum:
        return replace(self, rows=tuple(row.narrow() for row in self.rows))

    def part(self, lo: int, hi: int) -> StackedSum:
        rows = self.rows[lo - self.lo : hi - self.lo]
        return StackedSum(self.codec, self.terms, self.round_id, self.count, rows, lo, hi)


class StackedResidual:
    """A residual for every row."""

    def __init__(self, codec: Stacked) -> None:
        self.codec = codec
        self._rows = [codec.codec.residual() for _ in range(codec.rows)]

    def fits(self, x: Tensor) -> bool:
        """Whether it is empty, or of tensors of this shape."""
        return all(residual.fits(row) for residual, row in zip(self._rows, x, strict=True))

    def correct(self, x: Tensor) -> NDArray[np.float32]:
        return stacked([residual.correct(row) for residual, row in zip(self._rows, x, strict=True)])

    def encode(self, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None) -> StackedPayload:
        return self.codec.encode_rows(
            lambda row, its, where: self._rows[row].encode(its, rank=rank, round_id=round_id + row, out=where),
            terms,
            rank=rank,
            round_id=round_id,
            out=out,
        )

    def lost(self, payload: Payload) -> None:
        assert isinstance(payload, StackedPayload)
        for row, part in zip(range(payload.lo, payload.hi), payload.rows, strict=True):
            self._rows[row].lost(part)

    def unsent(self, x: Tensor) -> None:
        for residual, row in zip(self._rows, x, strict=True):
            residual.unsent(row)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [row.state_dict() for row in self._rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        same("number of rows", len(self._rows), len(state["rows"]), "load this residual")
        for row, kept in zip(self._rows, state["rows"], strict=True):
            row.load_state_dict(kept)
