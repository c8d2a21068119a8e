"""One round at one shard: who has sent what, and the parts in which payloads are added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

from sumwire.aggregate.protocol import place
from sumwire.aggregate.server.options import Rules
from sumwire.codec.base import Codec
from sumwire.errors import FrameError, MismatchError
from sumwire.wire import control, frame
from sumwire.wire.frame import Frame, to_bytes

Pieces: TypeAlias = list[bytes | memoryview]

KEPT_IN_MEMORY = 2
"""Times as many bytes as on the wire: a payload that is kept until all have come, and as much of the sum."""
BATCH = 8
"""Payloads that are added at once: lanes are then read and written once for all of them."""

TERMS_IN_MEMORY = 8
"""Times as many bytes as the terms themselves: what is derived of every block beside its scale."""


class Part:
    """The payloads of units lo..hi, each worker's once, until enough have come; then their sum."""

    def __init__(self, codec: Codec, lo: int, hi: int, memory: int) -> None:
        self.lo, self.hi, self._memory = lo, hi, memory
        self.arrived: set[int] = set()
        self.result: Pieces | None = None
        """The sum's frame, once it is complete; before it, if workers are missing, who they are."""
        self.held = memory
        """Bytes of memory, with those that its sum will take."""
        self.spread = 0.0
        """Seconds from its first payload to its last."""
        self._first: float | None = None
        self._codec = codec
        self._waiting: list[Any] = []
        self._total: Any = None

    def delay(self, now: float) -> float:
        """How long after the first payload the one that comes now is; the first is on time."""
        self._first = now if self._first is None else self._first
        return now - self._first

    def add(self, payload: Any) -> None:
        """Take a worker's payload; its memory is in use until the sum is complete or a batch is full."""
        self.arrived.add(payload.rank)
        self._waiting.append(payload)
        self.held += payload.nbytes * (1 if self._codec.adds_at_once else KEPT_IN_MEMORY)
        if len(self._waiting) >= BATCH and self._codec.adds_at_once:
            self._fold()
            self.held = self._memory or self._total.nbytes

    def complete(self) -> Pieces:
        """The sum's frame, of whoever has arrived."""
        if self.result is None:
            self._fold()
            self._total = self._total.narrow()  # once for all workers
            note: Pieces = []
            missing = set(range(self._codec.workers)) - self.arrived
            if missing:
                ranks = control.write_ranks(missing, self._codec.workers)
                note = [control.to_bytes(control.Expired(self._total.round_id, self.lo, self.hi, ranks))]
            self.result = note + frame.buffers(self._total)
            self.held = sum(len(piece) for piece in self.result)
            self._total = None
        return self.result

    def recover(self, total: Any, missing: set[int]) -> Pieces:
        """Take a sum that was made before this aggregator began, without these workers."""
        if total.count != self._codec.workers - len(missing):
            raise FrameError(f"a sum of {total.count} payloads cannot be without {len(missing)} workers")
        self._waiting, self._total = [], total
        self.arrived = set(range(self._codec.workers)) - missing
        return self.complete()

    def _fold(self) -> None:
        parts: Sequence[Any] = self._waiting if self._total is None else [self._total, *self._waiting]
        if self._waiting:
            self._total = self._codec.add(parts)
        self._waiting = []


@dataclass(frozen=True)
class Send:
    """A message for some workers."""

    ranks: frozenset[int]
    pieces: Pieces
    place: int | None = None
    """Of the round whose result it is."""


def to(ranks: Iterable[int], message: control.Control) -> Send:
    """A control message for some workers."""
    return Send(frozenset(ranks), [control.to_bytes(message)])


class Stage(Enum):
    """What a round waits for."""

    JOINING = auto()
    """Terms."""
    ADDING = auto()
    """Payloads."""
    FINISHED = auto()
    """Nothing: all its sums are there, or its workers average in another way."""
    FAILED = auto()


@dataclass
class RecoveredSum:
    """A sum of one part, as workers that had it return it: the bytes, who is missing from it, and who says so."""

    frame: Frame
    missing: frozenset[int]
    ranks: set[int] = field(default_factory=set)

    def agrees(self, frame: Frame, missing: frozenset[int]) -> bool:
        return self.missing == missing and self.frame.count == frame.count and self.frame.body == frame.body


@dataclass
class Round:
    """One aggregation of one tensor."""

    rules: Rules
    round_id: int
    codec: Codec
    size: int
    spans: frozenset[tuple[int, int]]
    """The parts that this shard adds."""
    opener: int
    """The worker that began it."""
    began: float
    since: float
    """When its present stage began."""
    touched: float
    """When something new arrived."""
    terms: Any = None
    agreed: bytes | None = None
    """The joined terms' frame, once they are fixed."""
    joined_elsewhere: bool = False
    """Whether another shard has joined its terms, or this one before it was restarted."""
    proposed: set[int] = field(default_factory=set)
    proposals: list[Any] = field(default_factory=list)
    """Everybody's terms, where joining them takes a median."""
    listening: set[int] = field(default_factory=set)
    """Ranks that want the result."""
    abstained: dict[int, str] = field(default_factory=dict)
    parts: dict[tuple[int, int], Part] = field(default_factory=dict)
    notes: dict[tuple[int, int, int], frozenset[int]] = field(default_factory=dict)
    """By part and rank: who is missing from a sum that this worker is about to return."""
    recovered: dict[tuple[int, int], RecoveredSum] = field(default_factory=dict)
    """Sums from before a restart, until all agree who have them."""
    failure: control.Failed | None = None
    asked: float = -1.0
    """When those it waits for were last asked."""
    accounted: int = 0
    """What of its memory is already accounted for."""

    @property
    def held(self) -> int:
        """Bytes of memory."""
        terms: int = len(self.agreed or b"") + sum(proposal.memory for proposal in self.proposals)
        if self.terms is not None:
            terms += TERMS_IN_MEMORY * self.terms.memory
        recovered = sum(each.frame.length for each in self.recovered.values())
        return terms + recovered + sum(part.held for part in self.parts.values())

    @property
    def taking_part(self) -> set[int]:
        """Ranks that have sent terms or payloads."""
        return self.proposed.union(*(part.arrived for part in self.parts.values()))

    @property
    def stage(self) -> Stage:
        if self.failure is not None:
            return Stage.FAILED
        if self.agreed is None:
            return Stage.JOINING
        summed = sum(part.result is not None for part in self.parts.values())
        return Stage.FINISHED if summed == len(self.spans) else Stage.ADDING

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.stage in (Stage.FINISHED, Stage.FAILED)

    def missing(self) -> list[int]:
        """Ranks that have not sent all of this stage."""
        if self.agreed is None:
            here = self.proposed
        elif len(self.parts) < len(self.spans):
            here = set()
        else:
            here = set.intersection(*(part.arrived for part in self.parts.values())) if self.parts else set()
        return sorted(set(range(self.rules.workers)) - here - self.abstained.keys())

    def part(self, lo: int, hi: int) -> Part:
        """The part, if this shard adds it."""
        part = self.parts.get((lo, hi))
        if part is None:
            if (lo, hi) not in self.spans:
                raise MismatchError(f"{lo}..{hi} is no part of this shard: use the same release and shards everywhere")
            memory = self.codec.memory(self.size, self.terms, lo, hi)
            part = self.parts[lo, hi] = Part(self.codec, lo, hi, memory)
        return part

    def same_tensor(self, received: Frame) -> bool:
        """Whether a frame can be of this round."""
        return (self.codec.family, self.size) == (received.family, received.size)

    def fix_terms(self, terms: Any, now: float) -> list[Send]:
        """These are the joined terms: all who listen get to know them."""
        self.terms, self.since, self.touched = terms, now, now
        self.agreed = to_bytes(terms, round_id=self.round_id)
        if not terms.encodable:
            self.spans = frozenset()  # no payload can come: workers average exactly, in the round's second exchange
        return [Send(frozenset(self.listening), [self.agreed])]

    def enough_terms(self) -> bool:
        """Whether all have proposed that the round waits for."""
        here = len(self.proposed) - sum(rank in self.proposed for rank in self.abstained)
        return here >= min(self.rules.needed, self.rules.workers - len(self.abstained))

    def enough(self, part: Part) -> bool:
        """Whether all have arrived that the round waits for."""
        will_not_come = sum(rank not in part.arrived for rank in self.abstained)
        return 0 < len(part.arrived) >= min(self.rules.needed, self.rules.workers - will_not_come)

    def results(self, rank: int) -> list[Send]:
        """What there is of the result, for one worker."""
        me = frozenset({rank})
        here = place(self.round_id)
        return [Send(me, part.result, here) for part in self.parts.values() if part.result is not None]

    def fail(self, failure: control.Failed) -> None:
        """There will be no result: its memory is free."""
        self.proposed = self.taking_part  # of whom is remembered that they were in it
        self.failure, self.terms, self.agreed = failure, None, None
        self.parts.clear()
        self.proposals.clear()
        self.notes.clear()
        self.recovered.clear()
