"""Peers that speak for several workers: racks, which contribute what they have added to a larger sum.

A rack is known by its first rank. What it sends counts for the ranks that it names; its others are not waited for.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from sumwire.aggregate.server.part import Part
from sumwire.aggregate.server.recovery import RecoveringTable
from sumwire.aggregate.server.round import Round, Send
from sumwire.errors import FrameError, MismatchError
from sumwire.wire import control
from sumwire.wire.frame import Frame


class SubtreeTable(RecoveringTable):
    """A table to which racks contribute, too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._spans: dict[int, range] = {}

    def greet(self, rank: int, position: int, now: float, known: str = "", span: int = 1) -> list[Send]:
        """As of a worker; a rack speaks for `span` ranks."""
        self._spans[rank] = range(rank, rank + span)
        return super().greet(rank, position, now, known)

    def speaks_for(self, rank: int) -> range:
        """The ranks that a peer speaks for: its own, or those of a rack."""
        return self._spans.get(rank, range(rank, rank + 1))

    def who(self, rank: int) -> str:
        """What a peer is called in messages."""
        mine = self.speaks_for(rank)
        return f"worker {rank}" if len(mine) == 1 else f"the rack of workers {mine[0]}..{mine[-1]}"

    def holds(self, rank: int, message: control.Holds, now: float) -> list[Send]:
        """Who is in a rack's contribution: a sum that comes next, or payloads that have come."""
        ranks = frozenset(control.read_ranks(message.ranks, self.rules.workers))
        if not ranks or not ranks <= set(self.speaks_for(rank)):
            raise FrameError(
                f"{self.who(rank)} names workers {sorted(ranks)[:8]}: a contribution is of one at least, of its own"
            )
        round_ = self._rounds.get(message.round_id)
        if round_ is None or round_.ended or (message.lo, message.hi) not in round_.spans:
            return []  # what it belongs to is answered
        if round_.codec.adds_at_once:
            round_.holding[message.lo, message.hi, rank] = ranks
            return []
        part = round_.part(message.lo, message.hi)
        if part.closed or not ranks <= part.arrived:
            return []  # some payloads had no room: all come again
        part.absent.update(set(self.speaks_for(rank)) - part.arrived)
        return self._sum(round_, part, now, force=False)

    def _contribute(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        """A rack's sum, of those whom it has named."""
        ranks, mine = round_.holding.pop((received.lo, received.hi, rank)), set(self.speaks_for(rank))
        if round_.agreed is None:
            return []  # it comes again
        part = round_.part(received.lo, received.hi)
        if part.closed or not mine.isdisjoint(part.settled):
            return self._too_late(part, rank, now, known=not mine.isdisjoint(part.arrived))
        total = received.sum(round_.codec, round_.terms)
        if not total.addable:
            raise MismatchError("it contributes a narrow sum, which cannot be added to: racks must send exact ones")
        if total.count != len(ranks) or (total.contributors or ranks) != ranks:
            raise MismatchError(
                f"it contributes a sum of {total.count} payloads, and names {len(ranks)} workers: run the same release "
                "everywhere"
            )
        part.add(total, ranks)
        part.absent.update(mine - ranks)
        return self._added(round_, part, rank, now)

    def _too_late(self, part: Part, rank: int, now: float, *, known: bool) -> list[Send]:
        """Somebody's payload came again, or after the sum was made."""
        self.duplicates += known
        if part.closed and not known:
            self.late += 1
            self.statistics.late(rank)
            self.statistics.arrived(rank, part.delay(now))
        return [] if part.result is None else [Send(frozenset({rank}), part.result)]

    @abstractmethod
    def _added(self, round_: Round, part: Part, rank: int, now: float) -> list[Send]: ...

    @abstractmethod
    def _sum(self, round_: Round, part: Part, now: float, *, force: bool) -> list[Send]: ...
