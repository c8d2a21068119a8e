"""The Rows codec's Terms, Payload and Sum.

Floats do not add associatively, so an open sum keeps its payloads, in rank order whatever the order of `+`, and is
added up once: when it is decoded, or packed to be sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Payload, Sum, Terms
from sumwire.codec.options import same
from sumwire.codec.rows import rows as coding

if TYPE_CHECKING:
    from sumwire.codec.rows.codec import Rows


@dataclass(frozen=True, eq=False)
class RowsTerms(Terms):
    """How many rows the table has, and values each row: nothing to choose, but whoever adds must know it."""

    codec: Rows
    table: int
    width: int
    least: tuple[int, int]
    """The smallest table and width of any worker: a maximum of their negatives finds out where workers differ."""

    @property
    def words(self) -> NDArray[Any]:
        return np.array([self.table, self.width, -self.least[0], -self.least[1]], np.int64)

    def __or__(self, other: Any) -> Any:
        if isinstance(other, RowsTerms):
            mine, theirs = (self.table, self.width), (other.table, other.width)
            same("size and shape of the table", mine, theirs, "join terms")
        return super().__or__(other)

    def with_words(self, words: NDArray[Any]) -> RowsTerms:
        table, width, *least = words.tolist()
        return RowsTerms(self.codec, self.shape, table, width, (-least[0], -least[1]))

    @cached_property
    def digest(self) -> int:
        return int.from_bytes(hashlib.blake2b(self.words[:2].tobytes(), digest_size=8).digest(), "little")

    @property
    def row_bytes(self) -> int:
        """Of a row of float32 on the wire."""
        return coding.row_bytes(self.table, self.width, np.dtype(np.float32))


@dataclass(frozen=True, eq=False)
class RowsPayload(Payload):
    """One worker's rows in shards lo..hi, shard by shard."""

    codec: Rows
    shards: tuple[coding.Rows, ...] = field(repr=False)
    kind: int
    lo: int
    hi: int

    @property
    def rows_terms(self) -> RowsTerms:
        assert isinstance(self.terms, RowsTerms)
        return self.terms

    @property
    def value_kind(self) -> int:
        return self.kind

    @property
    def nbytes(self) -> int:
        return len(self.data)

    @cached_property
    def data(self) -> Bytes:
        return coding.write_segments(self.shards, self.rows_terms.table)

    def part(self, lo: int, hi: int) -> RowsPayload:
        mine = self.shards[lo - self.lo : hi - self.lo]
        return RowsPayload(self.codec, self.terms, self.round_id, self.rank, mine, self.kind, lo, hi)

    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        pieces = [self.part(lo, hi).data for lo, hi in pairwise(edges)]
        return np.concatenate(pieces), tuple(map(len, pieces))


@dataclass(frozen=True, eq=False)
class RowsSum(Sum):
    """Payloads that wait to be added in rank order; or, closed, the result, which takes no more."""

    codec: Rows
    payloads: tuple[RowsPayload, ...] | None = field(repr=False)
    """None: closed."""
    closed: dict[int, tuple[coding.Rows, int]] = field(repr=False)
    """Of a closed sum, by shard: its rows, and how many payloads are in them."""
    lo: int
    hi: int

    @cached_property
    def sums(self) -> dict[int, tuple[coding.Rows, int]]:
        """The rows of each of shards lo..hi, added up, and how many payloads are in them."""
        assert isinstance(self.terms, RowsTerms)
        nothing = coding.no_rows(self.terms.width), 0
        if self.payloads is None:
            return {shard: self.closed.get(shard, nothing) for shard in range(self.lo, self.hi)}
        here: dict[int, list[coding.Rows]] = {shard: [] for shard in range(self.lo, self.hi)}
        for payload in self.payloads:
            for shard, rows in zip(range(payload.lo, payload.hi), payload.shards, strict=True):
                here[shard].append(rows)
        return {shard: (coding.add(parts), len(parts)) if parts else nothing for shard, parts in here.items()}

    @property
    def nbytes(self) -> int:
        return len(self.packed())

    def packed(self, out: Bytes | None = None) -> Bytes:
        assert isinstance(self.terms, RowsTerms)
        return coding.write_segments([rows for rows, _ in self.sums.values()], self.terms.table)

    def part(self, lo: int, hi: int) -> RowsSum:
        mine = {shard: each for shard, each in self.sums.items() if lo <= shard < hi}
        count = max((count for _, count in mine.values()), default=self.count)
        return RowsSum(self.codec, self.terms, self.round_id, count, None, mine, lo, hi)
