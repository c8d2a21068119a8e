"""The algebra: four verbs, two merges.

    terms   = codec.propose(x)                # what workers must agree on first
    terms   = terms_0 | terms_1 | ...         # JOIN: idempotent, commutative, associative
    payload = codec.encode(x, terms, ...)     # one worker's addable integers
    total   = payload_0 + payload_1 + ...     # ADD: commutative, associative, exact
    mean    = codec.decode(total)             # once, at each worker

A codec is immutable and hashable. `codec.family` names everything that must agree for terms to join
and payloads to add; members of a family may still differ in how many bits they spend.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.tensors import Tensor
from sumwire.errors import ConfigError, InputError, MismatchError

Shape = tuple[int, ...]

MAX_WORKERS = 1 << 16
MAX_ROUND = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Terms(ABC):
    """What all workers agree on before a round. `a | b` joins; joining twice changes nothing."""

    codec: Codec
    shape: Shape

    def __or__(self, other: Self) -> Self:
        if not isinstance(other, Terms):
            return NotImplemented
        same("codec family", self.codec.family, other.codec.family, "join terms")
        same("shape", self.shape, other.shape, "join terms")
        return self._join(other)

    @property
    @abstractmethod
    def digest(self) -> int:
        """64 bits that two terms share exactly when they are equal (up to a collision)."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the wire, without the frame's header."""

    @abstractmethod
    def _join(self, other: Self) -> Self: ...

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Terms):
            return NotImplemented
        mine = (self.codec.family, self.shape, self.digest)
        return mine == (other.codec.family, other.shape, other.digest)

    def __hash__(self) -> int:
        return hash((self.codec.family, self.shape, self.digest))


@dataclass(frozen=True, eq=False)
class Addend(ABC):
    """What Payload and Sum share: both can be added, and know to which round they belong."""

    codec: Codec
    terms: Terms
    round_id: int

    @property
    def shape(self) -> Shape:
        return self.terms.shape

    def __add__(self, other: Payload | Sum) -> Sum:
        if not isinstance(other, Addend):
            return NotImplemented
        return self.codec.add([self, other])

    def __radd__(self, other: object) -> Any:
        # So that the builtin sum() works, which starts from 0.
        return self if other == 0 and isinstance(other, int) else NotImplemented

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the wire, without the frame's header."""


@dataclass(frozen=True, eq=False)
class Payload(Addend):
    """One worker's addable integers. Adding two gives a `Sum`."""

    rank: int
    """Who sent it, so that an aggregator can tell a duplicate."""


@dataclass(frozen=True, eq=False)
class Sum(Addend):
    """Payloads added, with the count of workers in it. Adding more gives another `Sum`."""

    count: int
    """Payloads in the sum; where parts got lost, the most that any part holds."""


class Codec(ABC):
    """The four verbs. Immutable, hashable, built for a number of workers."""

    workers: int

    @property
    @abstractmethod
    def family(self) -> str:
        """Names everything that must agree for payloads to add: equal names, addable payloads."""

    @property
    @abstractmethod
    def headroom(self) -> int:
        """How many payloads a sum can take before a lane would wrap; at least `workers`."""

    @abstractmethod
    def propose(self, x: Tensor) -> Terms:
        """What this worker needs the others to agree on."""

    @abstractmethod
    def encode(self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0) -> Payload:
        """This worker's payload. `rank` must differ between the workers of a round."""

    @abstractmethod
    def decode(self, total: Sum | Payload) -> NDArray[np.float32]:
        """The mean of the tensors in the sum, in their shape."""

    def finish(self, total: Sum, xs: Sequence[Tensor]) -> NDArray[np.float32]:
        """The mean, where the tensors of all ranks in the sum are at hand: for codecs that may have to ask again."""
        return self.decode(total)

    @abstractmethod
    def _add(self, parts: Sequence[Any], out: NDArray[np.uint8] | None) -> Sum: ...

    def add(self, parts: Iterable[Addend], *, out: NDArray[np.uint8] | None = None) -> Sum:
        """Add any number of payloads and sums at once: what `+` does, in one pass over the lanes.

        The lanes go into `out`, if given: uint8, contiguous, large enough.
        """
        parts = list(parts)
        if not parts:
            raise ConfigError("nothing to add: pass at least one payload or sum")
        first = parts[0]
        for part in parts:
            if not isinstance(part, Addend):
                raise InputError(f"a {type(part).__name__} cannot be added: pass payloads and sums")
            same("codec family", self.family, part.codec.family, "add")
            same("shape", first.shape, part.shape, "add")
            same("round", first.round_id, part.round_id, "add")
            if part.terms is not first.terms:
                same("terms", first.terms.digest, part.terms.digest, "add")
        return self._add(parts, out)

    def check_rank(self, rank: int, round_id: int) -> tuple[int, int]:
        """Refuse a rank or round that the codec was not built for; both as plain integers."""
        rank, round_id = whole_number("rank", rank), whole_number("round_id", round_id)
        if not 0 <= rank < self.workers:
            raise ConfigError(
                f"rank {rank} is not in 0..{self.workers - 1}: the codec was built for "
                f"workers={self.workers}; build it with workers>={rank + 1}"
                if rank >= 0
                else f"rank {rank} is negative: ranks count from 0"
            )
        if not 0 <= round_id <= MAX_ROUND:
            raise ConfigError(f"round_id {round_id} is not in 0..2**64-1")
        return rank, round_id


def whole_number(name: str, value: object) -> int:
    """A plain int of what a caller passed as one (np.int64, say), or an error that names it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name}={value!r} is not a whole number") from None


def same(what: str, mine: object, theirs: object, verb: str) -> None:
    """Refuse to merge things that differ in `what`."""
    if mine != theirs:
        raise MismatchError(f"cannot {verb}: {what} differs ({mine!r} and {theirs!r}); all workers must use the same")
