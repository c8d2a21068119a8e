"""Rows of a table, summed without loss: gradients that name their rows, as those of nn.Embedding(sparse=True) do.

Nothing is made dense. A row is an entry, whatever it holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sumwire.codec.algebra import MAX_WORKERS, Bytes, DivideBy, Missing, Payload, Span, Sum, Terms, runs_of
from sumwire.codec.base import Codec
from sumwire.codec.options import one_of, same, whole_number
from sumwire.codec.rows import rows as coding
from sumwire.codec.rows.parts import RowsPayload, RowsSum, RowsTerms
from sumwire.codec.rows.rows import RowSlices
from sumwire.codec.sparse.segment import KINDS
from sumwire.codec.tensors import Tensor
from sumwire.errors import ConfigError, MismatchError, RoundError
from sumwire.kernels import sparse as kernels

MAX_SHARDS = 64
"""By default: every payload has a segment for every shard, empty or not."""
MAX_PARTS = 8
"""Frames that one of a server's shards has of a tensor, at most."""


@dataclass(frozen=True)
class Rows(Codec):
    """Lossless sums of tensors in sparse COO layout: each worker's own rows, added by the owner of each row.

    Law: the sum has the bits of the dense float32 sum in rank order; `decode` divides it by float32(count). Cost: 4
    bytes per row (8 in tables of 2**32 rows and more) and its values as they are. Takes NaN and Inf.

    >>> codec = Rows(workers=2)
    >>> a = RowSlices((9, 2), np.array([3]), np.ones((1, 2), np.float32))
    >>> b = RowSlices((9, 2), np.array([3, 5]), np.ones((2, 2), np.float32))
    >>> total = codec.encode(a, codec.propose(a), rank=0) + codec.encode(b, codec.propose(b), rank=1)
    >>> mean = codec.decode(total)
    >>> mean.numbers.tolist(), mean.values[:, 0].tolist()
    ([3, 5], [1.0, 0.5])

    workers   payloads that a sum may hold
    shards    parts of a table that are added apart, each by one owner (default 0: one per worker, 64 at most)
    """

    lossless = True
    may_share_whole_payloads = True
    adds_at_once = False  # floats are added in rank order, so not before all payloads are there

    workers: int
    shards: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        workers, shards = whole_number("workers", self.workers, 1, MAX_WORKERS), whole_number("shards", self.shards)
        if not 0 <= shards <= MAX_WORKERS:
            raise ConfigError(f"shards={shards} is not in 1..{MAX_WORKERS}, nor 0 for one per worker, 64 at most")
        object.__setattr__(self, "workers", workers)
        object.__setattr__(self, "shards", shards or min(workers, MAX_SHARDS))

    @cached_property
    def family(self) -> str:
        name = f"{self.workers} {self.shards}"
        return "rows-" + hashlib.blake2b(name.encode(), digest_size=8, person=b"sumwire rows").hexdigest()

    @property
    def headroom(self) -> int:
        return self.workers

    # The four verbs

    def accepts(self, x: Tensor) -> bool:
        return coding.accepts(x)

    def propose(self, x: Tensor) -> RowsTerms:
        """The shape of the table: it must be the same at all workers."""
        slices = coding.slices_of(x)
        width = slices.values.shape[1]
        return RowsTerms(self, slices.shape, slices.table, width, (slices.table, width))

    def encode(self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None) -> RowsPayload:
        """This worker's rows, each once, owner by owner."""
        agreed = self._own(terms)
        slices = coding.slices_of(x)
        same("shape", slices.shape, agreed.shape, "encode under these terms")
        same("size and shape of the table", agreed.least, (agreed.table, agreed.width), "average")
        rank, round_id = self.check_rank(rank, round_id)
        rows = coding.Rows(slices.numbers, slices.values)
        parts = coding.split(rows, coding.owners(rows.numbers, self.shards), self.shards)
        kind = KINDS.index(rows.values.dtype)
        return RowsPayload(self, agreed, round_id, rank, tuple(parts), kind, 0, self.shards)

    def decode(  # type: ignore[override]  # rows, where others give a dense array
        self,
        total: Sum | Payload,
        *,
        out: Any = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> RowSlices:
        """The mean of the rows that any worker has. `out` is not used: their number is not known before."""
        one_of("missing", missing, ("raise", "zero"))
        one_of("divide_by", divide_by, ("count", "workers"))
        whole = total if isinstance(total, RowsSum) else self._add([total], None)
        terms, sums = self._own(whole.terms), whole.sums
        lost = [shard for shard in range(self.shards) if not sums.get(shard, (None, 0))[1]]
        if lost and missing == "raise":
            raise RoundError(
                f"nothing arrived of {len(lost)} of {self.shards} shards (the first is {lost[0]}): wait for more "
                'frames, or take them as zero with missing="zero"'
            )
        everyone = self.workers if divide_by == "workers" else None
        means = [
            coding.Rows(rows.numbers, kernels.divide(np.asarray(rows.values, np.float32), everyone or count))
            for rows, count in sums.values()
            if count
        ]
        merged = coding.merge(means) if means else coding.no_rows(terms.width)
        return RowSlices(terms.shape, merged.numbers, np.asarray(merged.values, np.float32), terms.table)

    def to_tensor(self, mean: Any, like: Tensor, out: Tensor | None) -> Tensor:
        return coding.like(mean, like)

    def plain_bytes(self, x: Tensor, workers: int) -> int:
        """Of torch's own exchange: everyone's rows to everyone, with 8-byte numbers."""
        if not coding.accepts(x):
            return super().plain_bytes(x, workers)
        slices = coding.slices_of(x)
        return (workers - 1) * (slices.values.nbytes + slices.numbers.nbytes)

    # Adding

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> RowsSum:
        payloads: list[RowsPayload] = []
        for part in parts:
            if isinstance(part, RowsSum) and part.payloads is None:
                if len(parts) == 1:
                    return part
                raise MismatchError(
                    "cannot add to a sum that its owner has closed: floats must be added in rank order, so add all "
                    "payloads before the sum is sent"
                )
            payloads += [part] if isinstance(part, RowsPayload) else part.payloads or ()
        payloads.sort(key=lambda payload: (payload.rank, payload.lo))
        taken = {(p.rank, shard) for p in payloads for shard in range(p.lo, p.hi)}
        if len(taken) < sum(p.hi - p.lo for p in payloads):
            raise MismatchError("cannot add: some rank is in the sum already; a payload adds only once")
        first = payloads[0]
        same("kind of values", {first.value_kind}, {p.value_kind for p in payloads}, "add")
        counts = [sum(p.lo <= shard < p.hi for p in payloads) for shard in range(self.shards)]
        lo, hi = min(p.lo for p in payloads), max(p.hi for p in payloads)
        return RowsSum(self, first.terms, first.round_id, max(counts), tuple(payloads), {}, lo, hi)

    def side_by_side(self, parts: Sequence[Any]) -> RowsSum:
        sums = {shard: each for part in parts for shard, each in part.sums.items()}
        first = parts[0]
        count = max((count for _, count in sums.values()), default=first.count)
        lo, hi = min(part.lo for part in parts), max(part.hi for part in parts)
        return RowsSum(self, first.terms, first.round_id, count, None, sums, lo, hi)

    # What aggregators ask. Units are shards of the table.

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        return tuple(self.shards * shard // shards for shard in range(shards + 1))

    def for_owners(self, count: int) -> Rows:
        return replace(self, shards=count)

    def shares_whole_payloads(self, terms: Terms, lengths: Sequence[int]) -> bool:
        """If ranks choose their rows independently: of its own c rows, a rank sends n-1 copies; or all but those that
        it owns, and its share of the union to all others."""
        mine = self._own(terms)
        own = np.asarray(lengths) / mine.row_bytes
        union = mine.table * (1 - np.prod(1 - np.minimum(own / max(1, mine.table), 1)))
        return bool(len(own) * own.mean() <= own.mean() + union)

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> RowsPayload:
        mine = self._own(terms)
        parts = coding.read_segments(data, hi - lo, mine.table, mine.width, KINDS[kind])
        return RowsPayload(self, mine, round_id, rank, tuple(parts), kind, lo, hi)

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> RowsSum:
        mine = self._own(terms)
        sums: dict[int, tuple[coding.Rows, int]] = {}
        for (lo, hi), data in parts:
            read = coding.read_segments(data, hi - lo, mine.table, mine.width, np.dtype(np.float32))
            sums |= {shard: (rows, count) for shard, rows in zip(range(lo, hi), read, strict=True)}
        return RowsSum(self, mine, round_id, count, None, sums, 0, self.shards)

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        lo, hi = self.shards * shard // shards, self.shards * (shard + 1) // shards
        return runs_of(lo, hi, -(-(hi - lo) // MAX_PARTS) or 1)

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return size * hi // self.shards - size * lo // self.shards

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return 0  # sums are as long as their payloads

    def _own(self, terms: Terms) -> RowsTerms:
        if not isinstance(terms, RowsTerms):
            raise MismatchError(f"a Rows codec needs its own terms, not {type(terms).__name__}: call propose on it")
        return terms
