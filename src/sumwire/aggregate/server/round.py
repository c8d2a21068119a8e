"""One round at one shard: who has sent what, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sumwire.aggregate.server.part import Part, Pieces
from sumwire.aggregate.server.rules import Rules
from sumwire.errors import MismatchError
from sumwire.wire import control
from sumwire.wire.codecs import AnyCodec
from sumwire.wire.frame import Frame, to_bytes


@dataclass(frozen=True)
class Send:
    """A message for some workers."""

    ranks: frozenset[int]
    pieces: Pieces


def to(ranks: Iterable[int], message: control.Control) -> Send:
    """A control message for some workers."""
    return Send(frozenset(ranks), [control.to_bytes(message)])


@dataclass
class Round:
    """One aggregation of one tensor."""

    rules: Rules
    round_id: int
    codec: AnyCodec
    size: int
    spans: frozenset[tuple[int, int]]
    """The parts that this shard adds."""
    began: float
    since: float
    """When its present stage began."""
    touched: float
    """When something new arrived."""
    terms: Any = None
    agreed: bytes | None = None
    """The joined terms' frame, once they are fixed."""
    proposed: set[int] = field(default_factory=set)
    listening: set[int] = field(default_factory=set)
    """Ranks that want the result."""
    abstained: dict[int, str] = field(default_factory=dict)
    parts: dict[tuple[int, int], Part] = field(default_factory=dict)
    notes: dict[tuple[int, int], tuple[int, set[int]]] = field(default_factory=dict)
    """Who is missing from a sum that was made before this aggregator began, and who says so."""
    failure: control.Failed | None = None
    asked: float = -1.0
    """When those it waits for were last asked."""
    counted: int = 0
    """What of its memory the ledger has in its books."""

    @property
    def held(self) -> int:
        """Bytes of memory."""
        terms = (0 if self.terms is None else self.terms.nbytes) + len(self.agreed or b"")
        return terms + sum(part.held for part in self.parts.values())

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self.failure is not None or self.agreed is None:
            return self.failure is not None
        return len(self.parts) == len(self.spans) and all(part.result is not None for part in self.parts.values())

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
            part = self.parts[lo, hi] = Part(self.codec, lo, hi)
        return part

    def same_tensor(self, received: Frame) -> bool:
        """Whether a frame can be of this round."""
        return (self.codec.family, self.size) == (received.family, received.size)

    def fix_terms(self, terms: Any, now: float) -> list[Send]:
        """These are the joined terms: all who listen get to know them."""
        self.terms, self.since, self.touched = terms, now, now
        self.agreed = to_bytes(terms, round_id=self.round_id)
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
        return [Send(me, part.result) for part in self.parts.values() if part.result is not None]

    def fail(self, failure: control.Failed) -> None:
        """There will be no result: its memory is free."""
        self.failure, self.terms, self.agreed = failure, None, None
        self.parts.clear()
        self.notes.clear()
