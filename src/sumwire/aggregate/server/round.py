"""One round at one shard: who has sent what, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from sumwire.aggregate.protocol import place
from sumwire.aggregate.server.options import Rules
from sumwire.aggregate.server.part import Part, Pieces
from sumwire.codec.base import Codec
from sumwire.codec.options import differences
from sumwire.errors import MismatchError
from sumwire.wire import control
from sumwire.wire.frame import Frame, to_bytes

TERMS_IN_MEMORY = 8
"""Times as many bytes as the terms themselves: what is derived of every block beside its scale."""


@dataclass(frozen=True)
class Send:
    """A message for some workers."""

    ranks: frozenset[int]
    pieces: Pieces
    place: int | None = None
    """Of the round whose result it is."""
    asks: int | None = None
    """A round about which upstream is to be asked, instead of pieces."""


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
    """By part and rank: who is missing from a sum that this worker, or upstream, is about to return."""
    holding: dict[tuple[int, int, int], frozenset[int]] = field(default_factory=dict)
    """By part and rank: who is in the sum that this rack is about to contribute."""
    passed_up: bytes = b""
    """The frame of this rack's terms that upstream was sent."""
    given_up: control.Abstain | None = None
    """Why this rack has nothing to contribute, once that is certain."""
    asked_up: float = 0.0
    """When upstream was last sent something of it, or asked."""
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
            here = set.intersection(*(part.settled for part in self.parts.values())) if self.parts else set()
        return sorted(set(self.rules.members) - here - self.abstained.keys())

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

    def difference(self, codec: Codec, received: Frame) -> str:
        """What a worker's tensor and codec have that those of the others do not."""
        why = differences(codec.description(), self.codec.description(), names=("it", "the round"))
        if received.size != self.size:
            sizes = f"it sends a tensor of {received.size} values, the round is of {self.size}"
            why = f"{sizes}; {why}" if why else sizes
        return f"{why or 'its codec is of another release'}: all workers must pass equal shapes and codec options"

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
        return here >= min(self.rules.needed, len(self.rules.members) - len(self.abstained))

    def enough(self, part: Part) -> bool:
        """Whether all have arrived that the round waits for."""
        will_not_come = len((part.absent | self.abstained.keys()) - part.arrived)
        return 0 < len(part.arrived) >= min(self.rules.needed, len(self.rules.members) - will_not_come)

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
        self.holding.clear()
        self.recovered.clear()
