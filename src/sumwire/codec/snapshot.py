"""A broadcast by join: everyone takes the words of whoever has them.

Joining is idempotent, so any number of workers may offer the same words, and it does not matter which of them arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import MAX_WORKERS, Bytes, DivideBy, Missing, Payload, Span, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.options import same, same_family, whole_number
from sumwire.codec.tensors import Tensor
from sumwire.errors import HeadroomError, InputError, MismatchError

NOTHING = np.int32(-(1 << 31))
"""The word of a worker that has nothing to offer: less than all others."""

_EMPTY = np.empty(0, np.uint8)


@dataclass(frozen=True, eq=False)
class SnapshotTerms(Terms):
    """The words, or None if a worker has none."""

    codec: Snapshot
    values: NDArray[np.int32] | None

    @property
    def words(self) -> NDArray[Any]:
        return np.full(self.size, NOTHING, np.int32) if self.values is None else self.values

    def with_words(self, words: NDArray[Any]) -> SnapshotTerms:
        return SnapshotTerms(self.codec, self.shape, words if bool((words != NOTHING).any()) else None)

    def __or__(self, other: Any) -> Any:
        if isinstance(other, SnapshotTerms) and (self.values is None or other.values is None):
            same_family(self.codec, other.codec, "join terms")
            same("shape", self.shape, other.shape, "join terms")
            return other if self.values is None else self
        return super().__or__(other)

    @cached_property
    def digest(self) -> int:
        if self.values is None:
            return 0
        return int.from_bytes(hashlib.blake2b(self.values.tobytes(), digest_size=8).digest(), "little")

    @property
    def nbytes(self) -> int:
        return 0 if self.values is None else self.values.nbytes


@dataclass(frozen=True, eq=False)
class SnapshotPayload(Payload):
    """Nothing: all has been said in the terms."""

    codec: Snapshot

    @property
    def nbytes(self) -> int:
        return 0

    def part(self, lo: int, hi: int) -> SnapshotPayload:
        return self

    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        return _EMPTY, (0,) * (len(edges) - 1)


@dataclass(frozen=True, eq=False)
class SnapshotSum(Sum):
    """Of nothing, by a number of workers."""

    codec: Snapshot

    @property
    def nbytes(self) -> int:
        return 0

    def packed(self, out: Bytes | None = None) -> Bytes:
        return _EMPTY

    def part(self, lo: int, hi: int) -> SnapshotSum:
        return self


@dataclass(frozen=True)
class Snapshot(Codec):
    """Words of int32, the same at all workers that have them; the others pass `NOTHING` in every word.

    Law: `decode` gives the maximum, word by word, over the workers whose terms were joined: the words, if those that
    have any have the same. Cost: 4 bytes per word from each worker that has them, and to all.

    >>> codec = Snapshot(workers=2)
    >>> have, have_not = np.array([7, -3], np.int32), np.full(2, NOTHING)
    >>> terms = codec.propose(have_not) | codec.propose(have)
    >>> codec.decode(codec.encode(have, terms, rank=0)).tolist()
    [7, -3]
    """

    lossless = True

    workers: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", whole_number("workers", self.workers, 1, MAX_WORKERS))

    @cached_property
    def family(self) -> str:
        name = hashlib.blake2b(str(self.workers).encode(), digest_size=8, person=b"sumwire snapshot")
        return "snapshot-" + name.hexdigest()

    @property
    def headroom(self) -> int:
        return self.workers

    def propose(self, x: Tensor) -> SnapshotTerms:
        if not (isinstance(x, np.ndarray) and x.dtype == np.int32 and x.ndim == 1 and x.flags.c_contiguous):
            raise InputError("a snapshot is a flat, contiguous int32 array: view the bytes of other dtypes as one")
        return SnapshotTerms(self, x.shape, x if bool((x != NOTHING).any()) else None)

    def encode(
        self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> SnapshotPayload:
        rank, round_id = self.check_rank(rank, round_id)
        return SnapshotPayload(self, self._own(terms), round_id, rank)

    def decode(  # type: ignore[override]  # words, where others give floats
        self,
        total: Sum | Payload,
        *,
        out: Any = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> NDArray[np.int32]:
        """The words; `NOTHING` in all of them if no worker had any."""
        return self._own(total.terms).words

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> SnapshotSum:
        count = sum(part.count for part in parts)
        if count > self.headroom:
            raise HeadroomError(
                f"cannot add payload {self.headroom + 1}: the codec was built for {self.workers} workers; "
                f"build it with workers>={count}"
            )
        return SnapshotSum(self, parts[0].terms, parts[0].round_id, count)

    def _own(self, terms: Terms) -> SnapshotTerms:
        if not isinstance(terms, SnapshotTerms):
            raise MismatchError(f"a Snapshot codec needs its own terms, not {type(terms).__name__}: call propose on it")
        return terms

    # What aggregators ask. There are no units: nothing is added.

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        return (0,) * (shards + 1)

    def payload_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...]:
        return (0,) * (len(edges) - 1)

    sum_sizes = payload_sizes

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> SnapshotPayload:
        return SnapshotPayload(self, terms, round_id, rank)

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> SnapshotSum:
        return SnapshotSum(self, terms, round_id, count)

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        return [(0, 0)] if shard == 0 else []

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return size

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return 0
