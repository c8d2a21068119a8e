"""The algebra: four verbs, two merges.

    terms   = codec.propose(x)                # what workers must agree on first
    terms   = terms_0 | terms_1 | ...         # JOIN: idempotent, commutative, associative
    payload = codec.encode(x, terms, ...)     # one worker's addable integers
    total   = payload_0 + payload_1 + ...     # ADD: commutative, associative, exact
    mean    = codec.decode(total)             # once, at each worker

A codec is immutable and hashable. `codec.family` names everything that must agree for terms to join
and payloads to add; members of a family may still differ in how many bits they spend.

Everything an aggregator may ask of a codec is a method here, so no aggregator needs to know which codec it carries.
A tensor is cut into *units* (blocks of a Lattice, shards of a Sparse tensor, words of a Sketch, rows of a stack);
`lo..hi` always counts units.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, reduce
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.tensors import Tensor, give_back, size_of
from sumwire.errors import ConfigError, InputError, MismatchError

Shape = tuple[int, ...]
Span = tuple[int, int]
"""Units lo..hi."""
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Missing = Literal["raise", "zero"]
DivideBy = Literal["count", "workers"]

MAX_WORKERS = 1 << 16
MAX_ROUND = (1 << 64) - 1
FOLLOW_UP = 1 << 63
"""Bit of a round's id that names its second exchange, where a codec needs one."""


@dataclass(frozen=True, eq=False)
class Terms(ABC):
    """What all workers agree on before a round. `a | b` joins; joining twice changes nothing.

    Terms are a list of `words` that join one by one, by maximum or bitwise OR: whoever can do that can join terms.
    """

    codec: Codec
    shape: Shape

    joined_by: ClassVar[Literal["max", "or"]] = "max"

    @property
    @abstractmethod
    def words(self) -> NDArray[Any]:
        """What is joined, as signed integers (int32 or int64); empty if there is nothing to agree on."""

    @abstractmethod
    def with_words(self, words: NDArray[Any]) -> Self:
        """These terms with the joined words."""

    def as_capped(self) -> Self:
        """These terms, for workers to know that an aggregator has held them down."""
        return self

    @staticmethod
    def join_capped(proposals: Sequence[Any], cap: float) -> Any:
        """All workers' terms joined, where no single one may raise them over `cap` times the median."""
        return reduce(operator.or_, proposals)

    @property
    def encodable(self) -> bool:
        """False if some worker cannot encode its tensor (NaN, Inf): all then see it, and average it exactly."""
        return True

    def __or__(self, other: Self) -> Self:
        if not isinstance(other, Terms):
            return NotImplemented
        same("codec family", self.codec.family, other.codec.family, "join terms")
        same("shape", self.shape, other.shape, "join terms")
        for terms in (self, other):
            if not terms.encodable:
                return terms
        join = np.maximum if self.joined_by == "max" else np.bitwise_or
        return self.with_words(join(self.words, other.words))

    @cached_property
    def size(self) -> int:
        """Coordinates of the tensor."""
        return math.prod(self.shape)

    @property
    @abstractmethod
    def digest(self) -> int:
        """64 bits that two terms share exactly when they are equal (up to a collision)."""

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, without the frame's header."""
        return self.words.nbytes if self.encodable else 0

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

    @abstractmethod
    def part(self, lo: int, hi: int) -> Self:
        """Units lo..hi alone, without copying where possible."""


@dataclass(frozen=True, eq=False)
class Payload(Addend):
    """One worker's addable integers. Adding two gives a `Sum`."""

    rank: int
    """Who sent it, so that an aggregator can tell a duplicate."""

    @property
    def value_kind(self) -> int:
        """How its values are written, where workers may differ in that."""
        return 0

    @property
    def count(self) -> int:
        return 1

    @abstractmethod
    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        """The bytes of units edges[k]..edges[k + 1] one after another, and how many bytes each run has."""

    def summands(self, out: NDArray[np.int32] | None = None) -> NDArray[Any] | None:
        """int32 or float32 numbers whose plain SUM over the workers is the sum; None if the codec has no such form."""
        return None


@dataclass(frozen=True, eq=False)
class Sum(Addend):
    """Payloads added, with the count of workers in it. Adding more gives another `Sum`."""

    count: int
    """Payloads in the sum; where parts got lost, the most that any part holds."""
    late: tuple[Span, ...] = field(default=(), kw_only=True)
    """Units that were summed without the payload of the worker that holds this sum."""

    @abstractmethod
    def packed(self, out: Bytes | None = None) -> Bytes:
        """The bytes that travel down, without the frame's header; at the front of `out`, if that helps."""


class FollowUp(ABC):
    """A second exchange that a sum needs before it can be decoded: another, smaller round under known terms."""

    terms: Terms
    ranks: frozenset[int]
    """Workers that are in the sum: only they take part."""

    @abstractmethod
    def pick(self, x: Tensor) -> Tensor:
        """What this worker has to send of its tensor."""

    @abstractmethod
    def decode(self, total: Sum, *, out: Floats | None = None) -> Floats:
        """The mean, from the sum of the second exchange."""


class ErrorFeedback(Protocol):
    """What a round asks of a `Residual`, or of several that belong together."""

    @property
    def codec(self) -> Codec: ...

    def correct(self, x: Tensor) -> Floats: ...

    def encode(self, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None) -> Payload: ...

    def lost(self, payload: Payload) -> None: ...

    def unsent(self, x: Tensor) -> None: ...


class Codec(ABC):
    """The four verbs. Immutable, hashable, built for a number of workers."""

    workers: int
    lossless: ClassVar[bool] = False
    """Whether sums are exact, so that a residual would have nothing to keep."""
    agrees: ClassVar[bool] = True
    """Whether there are terms to agree on; if not, a round begins with its payloads."""
    follows_up: ClassVar[bool] = False
    """Whether a sum may need a second exchange."""
    feedback: bool = False
    """Whether every worker keeps a residual."""

    @property
    @abstractmethod
    def family(self) -> str:
        """Names everything that must agree for payloads to add: equal names, addable payloads."""

    def options(self) -> dict[str, Any]:
        """From which a reader builds this codec again; those that it finds by itself may be missing."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    @property
    @abstractmethod
    def headroom(self) -> int:
        """How many payloads a sum can take before a lane would wrap; at least `workers`."""

    @property
    def member(self) -> int:
        """Tells members of a family apart that spend different numbers of bits."""
        return 0

    def with_member(self, member: int) -> Self:
        """The member of this family that another worker uses."""
        same("member of the codec family", self.member, member, "use this codec")
        return self

    # The four verbs

    @abstractmethod
    def propose(self, x: Tensor) -> Terms:
        """What this worker needs the others to agree on."""

    def refuse(self, shape: Shape) -> Terms:
        """Terms of a worker that cannot encode its tensor: whatever is joined with them is not `encodable`."""
        raise InputError(f"a {type(self).__name__} codec encodes any tensor: there is nothing to refuse")

    def empty_terms(self, shape: Shape) -> Terms:
        """The terms of any tensor of this shape, where there is nothing to agree on."""
        raise InputError(f"a {type(self).__name__} codec has terms to agree on: propose and join them")

    def accepts(self, x: Tensor) -> bool:
        """Whether this codec can encode tensors of x's dtype at all."""
        return True

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        """Bytes that `encode` may need in `out` for a tensor whose values have `itemsize` bytes."""
        return 0

    @abstractmethod
    def encode(self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None) -> Payload:
        """This worker's payload. `rank` must differ between the workers of a round; `out` lends memory for it."""

    @abstractmethod
    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The mean of the tensors in the sum, in their shape."""

    def to_tensor(self, mean: Any, like: Tensor, out: Tensor | None) -> Tensor:
        """A decoded mean in the kind, dtype and shape of `like`; or in `out`."""
        return give_back(mean, like, out)

    def plain_bytes(self, x: Tensor, workers: int) -> int:
        """What each worker would send of this tensor without Sumwire: a ring all-reduce."""
        return 2 * size_of(x) * int(x.itemsize) * (workers - 1) // workers

    def follow_up(self, total: Sum) -> FollowUp | None:
        """The second exchange that this sum needs, if any. Every worker of a round comes to the same answer."""
        return None

    # Adding

    @abstractmethod
    def _add(self, parts: Sequence[Any], out: Bytes | None) -> Sum: ...

    def add(self, parts: Iterable[Addend], *, out: Bytes | None = None) -> Sum:
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

    def side_by_side(self, parts: Sequence[Sum]) -> Sum:
        """Sums of different units of one round, as one sum."""
        return self.add(parts)

    # How an aggregator cuts and moves tensors

    @abstractmethod
    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        """Where to cut a tensor for `shards` owners: owner k adds units edges[k]..edges[k + 1]."""

    def payload_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...] | None:
        """Bytes of each run of a payload, if they follow from the terms; None: lengths must travel first."""
        return None

    def sum_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...] | None:
        """Bytes of each run of a packed sum, if they follow from the terms; None: lengths must travel first."""
        return None

    @abstractmethod
    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> Addend:
        """Units lo..hi of a trusted peer's payload, from the bytes that its `cut` gave. Frames check what they read."""

    may_share_whole_payloads: ClassVar[bool] = False

    def shares_whole_payloads(self, terms: Terms, lengths: Sequence[int]) -> bool:
        """Whether everyone's payload to everyone is less than shards to their owners and sums back."""
        return False

    @abstractmethod
    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> Sum:
        """A whole sum from the packed sums of its owners."""

    def read_summands(self, terms: Terms, values: NDArray[Any], *, count: int, round_id: int) -> Sum:
        """A whole sum from the SUM of all workers' `summands`."""
        raise InputError(f"a {type(self).__name__} codec has no form that a plain SUM adds")

    def expected_bits(self, size: int) -> tuple[float, float, float] | None:
        """Bits of a payload, of its sum and of the terms of `size` typical coordinates; None if nobody can tell."""
        return None

    @property
    def alignment(self) -> int:
        """Cutting a long tensor into rounds at multiples of this loses nothing."""
        return 1

    def residual(self) -> Any:
        """A fresh `Residual` for one tensor, if this codec keeps one; else None."""
        return None

    def for_owners(self, count: int) -> Codec:
        """This codec where `count` owners add: one that cuts tensors into enough units."""
        return self

    def for_plain_sums(self) -> Codec:
        """This codec where only sums are to be had: one whose payloads have `summands`, if there is one."""
        return self

    # What workers and server compute alike

    @abstractmethod
    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        """The runs of units that one of the server's shards adds, each a frame of its own."""

    @abstractmethod
    def coordinates(self, size: int, lo: int, hi: int) -> int:
        """How many values units lo..hi hold, at least approximately: for statistics."""

    @abstractmethod
    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        """Bytes that the sum of units lo..hi takes in memory beside its payloads; at most, while terms are unknown."""

    adds_at_once: ClassVar[bool] = True
    """Whether payloads are folded into a sum as they arrive; if not, they are kept until all have come."""
    work_per_byte: ClassVar[float] = 1.0
    """How long adding a byte of payload takes, relative to the slowest codec."""

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


def one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse an option that is none of its choices."""
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not {' or '.join(map(repr, choices))}")


def same(what: str, mine: object, theirs: object, verb: str) -> None:
    """Refuse to merge things that differ in `what`."""
    if mine != theirs:
        raise MismatchError(f"cannot {verb}: {what} differs ({mine!r} and {theirs!r}); all workers must use the same")
