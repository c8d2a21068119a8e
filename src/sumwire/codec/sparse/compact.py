"""Compaction: lossless sums of sparse tensors over transports that can only join and sum.

Workers join bitmaps of their non-zeros by OR, then a plain float32 SUM adds the values of the union.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import MAX_WORKERS, Addend, Bytes, DivideBy, Floats, Missing, Payload, Span, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.options import one_of, same, whole_number
from sumwire.codec.sparse.sharding import Shards, deal
from sumwire.codec.tensors import Tensor, buffer, flatten
from sumwire.errors import ConfigError, HeadroomError, MismatchError, RoundError
from sumwire.kernels import sparse as kernels


@dataclass(frozen=True, eq=False)
class CompactTerms(Terms):
    """A bitmap of the coordinates that are not zero on some worker."""

    codec: Compact
    bitmap: NDArray[np.uint64] = field(repr=False)

    joined_by = "or"

    @property
    def words(self) -> NDArray[Any]:
        return self.bitmap.view(np.int64)

    def with_words(self, words: NDArray[Any]) -> CompactTerms:
        return CompactTerms(self.codec, self.shape, words.view(np.uint64))

    @cached_property
    def digest(self) -> int:
        return int.from_bytes(hashlib.blake2b(self.bitmap.tobytes(), digest_size=8).digest(), "little")

    @cached_property
    def count(self) -> int:
        """Coordinates of the union."""
        return kernels.count(self.bitmap)


class _Values(Addend):
    """Values at coordinates lo..lo + len(values) of the union."""

    values: Floats
    lo: int

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    @property
    def hi(self) -> int:
        return self.lo + len(self.values)

    def part(self, lo: int, hi: int) -> Any:
        if not self.lo <= lo <= hi <= self.hi:
            raise ConfigError(f"coordinates {lo}..{hi} of the union are not within {self.lo}..{self.hi}")
        either: Any = self  # a payload or a sum, whose fields these are
        return replace(either, values=self.values[lo - self.lo : hi - self.lo], lo=lo)


@dataclass(frozen=True, eq=False)
class CompactPayload(_Values, Payload):
    """One worker's values at the coordinates of the union, or at some of them."""

    codec: Compact
    values: Floats = field(repr=False)
    lo: int = 0

    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        return self.values.view(np.uint8), self.codec.payload_sizes(self.terms, edges)

    def summands(self, out: NDArray[np.int32] | None = None) -> Floats:
        return self.values


@dataclass(frozen=True, eq=False)
class CompactSum(_Values, Sum):
    """Values at the coordinates of the union, or at some of them, added."""

    codec: Compact
    values: Floats = field(repr=False)
    lo: int = 0

    def packed(self, out: Bytes | None = None) -> Bytes:
        return self.values.view(np.uint8)


@dataclass(frozen=True)
class Compact(Codec):
    """Lossless sums of mostly-zero tensors, for collectives that can only sum: a bitmap, then the union's values.

    Parameters
    ----------
    workers : int
        Payloads that a sum may hold.

    Notes
    -----
    Law: every worker gets the same float32 sum; its order is that in which payloads are added. Bits: one per
    coordinate for the bitmap, 32 per coordinate of the union. No bias. Takes NaN and Inf.

    Examples
    --------
    >>> codec = Compact(workers=2)
    >>> xs = [np.array([0, 1, 0, 2], np.float32), np.array([0, 3, 0, 0], np.float32)]
    >>> terms = codec.propose(xs[0]) | codec.propose(xs[1])
    >>> total = codec.encode(xs[0], terms, rank=0) + codec.encode(xs[1], terms, rank=1)
    >>> codec.decode(total), total.nbytes
    (array([0., 2., 0., 1.], dtype=float32), 8)
    """

    lossless = True

    workers: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", whole_number("workers", self.workers, 1, MAX_WORKERS))

    @property
    def family(self) -> str:
        return f"compact-{self.workers}"

    @property
    def headroom(self) -> int:
        return self.workers

    def accepts(self, x: Tensor) -> bool:
        return not str(x.dtype).endswith("float64")

    def propose(self, x: Tensor) -> CompactTerms:
        """A bitmap of x's non-zeros. One pass over x."""
        flat, shape = flatten(x)
        shards = _one_shard(flat.size)
        words = np.empty(shards.words(0), np.uint64)
        kernels.scan(flat, shards.starts[0], shards.block, words)
        return CompactTerms(self, shape, words)

    def encode(
        self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> CompactPayload:
        """This worker's values at the coordinates of the union, in float32."""
        agreed = self._own(terms)
        rank, round_id = self.check_rank(rank, round_id)
        flat, shape = flatten(x)
        same("shape", shape, agreed.shape, "encode under these terms")
        own_bitmap = self.propose(x).bitmap
        if bool((own_bitmap & ~agreed.bitmap).any()):
            raise MismatchError(
                "the terms do not cover x: it has values where the joined bitmap has none; join this tensor's own "
                "terms before encoding"
            )
        shards, own = _one_shard(flat.size), np.empty(agreed.count, flat.dtype)
        kernels.compact(flat, shards.starts[0], shards.block, agreed.bitmap, own)
        values = np.ascontiguousarray(kernels.to_float32(own), np.float32)
        return CompactPayload(self, agreed, round_id, rank, values)

    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The mean, zeros filled in."""
        one_of("missing", missing, ("raise", "zero"))
        one_of("divide_by", divide_by, ("count", "workers"))
        terms, shards = self._own(total.terms), _one_shard(total.terms.size)
        assert isinstance(total, _Values)
        values = self._whole(total, terms.count, missing)
        mean = buffer(out, terms.size, np.float32, values)
        divisor = float(self.workers if divide_by == "workers" else total.count)
        kernels.expand(terms.bitmap, values, shards.starts[0], shards.block, mean, divisor)
        return mean.reshape(terms.shape)

    @staticmethod
    def _whole(total: _Values, count: int, missing: Missing) -> Floats:
        """The union's values, 0 where the sum has none."""
        if len(total.values) == count:
            return total.values
        if missing == "raise":
            raise RoundError(
                f"{count - len(total.values)} of the union's {count} coordinates are not in the sum: add all parts, or "
                'take them as zero with missing="zero"'
            )
        values = np.zeros(count, np.float32)
        values[total.lo : total.hi] = total.values
        return values

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> CompactSum:
        for part in parts[1:]:
            same("range of the union's coordinates", (parts[0].lo, parts[0].hi), (part.lo, part.hi), "add")
        ranks = [part.rank for part in parts if isinstance(part, Payload)]
        if len(set(ranks)) < len(ranks):
            raise MismatchError("cannot add: some rank is in the sum already; each rank adds once")
        if sum(part.count for part in parts) > self.headroom:
            raise HeadroomError(
                f"cannot add payload {self.headroom + 1}: a sum holds {self.headroom}; build the codec with "
                f"workers>={self.headroom + 1}"
            )
        values = parts[0].values.copy()
        for part in parts[1:]:
            kernels.accumulate(values, kernels.ones(len(values)), part.values)
        count = sum(part.count for part in parts)
        return CompactSum(self, parts[0].terms, parts[0].round_id, count, values, parts[0].lo)

    def _own(self, terms: Terms) -> CompactTerms:
        if not isinstance(terms, CompactTerms):
            raise MismatchError(f"a Compact codec needs its own terms, not {type(terms).__name__}: call propose on it")
        return terms

    # What aggregators ask; units are the union's coordinates

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        return tuple(self._own(terms).count * shard // shards for shard in range(shards + 1))

    def payload_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...]:
        return tuple(4 * np.diff(edges))

    sum_sizes = payload_sizes

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> CompactPayload:
        return CompactPayload(self, terms, round_id, rank, data.view(np.float32), lo)

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> CompactSum:
        values = np.concatenate([np.empty(0, np.uint8), *(data for _, data in parts)]).view(np.float32)
        return CompactSum(self, terms, round_id, count, values, parts[0][0][0] if parts else 0)

    def read_summands(self, terms: Terms, values: NDArray[Any], *, count: int, round_id: int) -> CompactSum:
        return CompactSum(self, terms, round_id, count, values)

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        return [(0, 0)] if shard == 0 else []

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return size

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return 4 * size if terms is None else 4 * self._own(terms).count


def _one_shard(size: int) -> Shards:
    return deal(size, 1)
