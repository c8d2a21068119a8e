"""A job at a rack: its workers' terms and payloads are merged here, and with those of other racks upstream.

    terms up        of this rack's workers, joined      ->  terms down   of all workers, joined
    contribution up of this rack's workers, added       ->  sum down     of all workers, added

Sums add to sums, so every worker gets the bits that one server for all would give. Like its base class it has neither
sockets nor a clock: what comes from upstream comes in by a method, what goes there is sent to the rank `UPSTREAM`.
"""

from __future__ import annotations

from collections.abc import Iterable

from sumwire.aggregate.protocol import place
from sumwire.aggregate.server.job_aggregator import JobAggregator
from sumwire.aggregate.server.part import Part, Pieces
from sumwire.aggregate.server.round import Round, Send, to
from sumwire.wire import control
from sumwire.wire.frame import Frame, describe, to_bytes
from sumwire.wire.limits import Kind

UPSTREAM = -1
"""Where messages to the upstream server go: no worker has this rank."""
ASK = 1.0
"""Seconds after which upstream is asked for what does not come."""

_UP = frozenset({UPSTREAM})


class RackAggregator(JobAggregator):
    """Joins and adds for a job's workers in one rack. How a round ends is decided upstream.

    Quorum and deadline say when this rack contributes what it has. If it cannot, it says so, and its workers get the
    sum of the others, or the error that upstream gives.
    """

    # Up

    def _joined(self, round_: Round, now: float) -> list[Send]:
        frame = to_bytes(round_.terms, round_id=round_.round_id)
        if frame == round_.passed_up or round_.given_up is not None:
            return []
        if not round_.passed_up:
            self.statistics.joined(now - round_.began)
        round_.passed_up, round_.asked_up = frame, now
        return [Send(_UP, [frame])]

    def _summed(self, round_: Round, part: Part, now: float) -> list[Send]:
        if round_.given_up is not None:
            return []
        round_.asked_up = now
        terms = [self._agreement(round_)] if round_.joined_elsewhere else []
        return [*(Send(_UP, pieces) for pieces in terms), Send(_UP, part.contribute())]

    def _lose(self, round_: Round, reason: str, missing: Iterable[int], now: float) -> list[Send]:
        """Whether the round goes on without this rack is decided upstream."""
        if round_.given_up is not None:
            return []
        round_.given_up, round_.asked_up = control.Abstain(round_.round_id, reason[: control.MAX_REASON]), now
        return [to(_UP, round_.given_up)]

    def _fail(
        self, round_: Round, reason: str, missing: Iterable[int], now: float, *, next_round: int = 0
    ) -> list[Send]:
        if round_.failure is not None:
            return []
        sends = super()._fail(round_, reason, missing, now, next_round=next_round)
        return [*sends, to(_UP, control.Abstain(round_.round_id, reason[: control.MAX_REASON]))]

    def _overdue(self, round_: Round, now: float) -> bool:
        """Only what this rack's own workers owe: upstream has a timeout of its own."""
        return self._waits_for_workers(round_) and super()._overdue(round_, now)

    @staticmethod
    def _waits_for_workers(round_: Round) -> bool:
        if round_.given_up is not None:
            return False
        if round_.agreed is None:
            return not round_.passed_up
        return sum(part.closed for part in round_.parts.values()) < len(round_.spans)

    def told(self, rank: int, message: control.Control, now: float) -> list[Send]:
        news = isinstance(message, control.Describe) and message.family not in self._codecs
        sends = super().told(rank, message, now)
        return [to(_UP, message), *sends] if news else sends

    def abstain(self, rank: int, message: control.Abstain, now: float) -> list[Send]:
        sends = super().abstain(rank, message, now)
        early = self._early.get(message.round_id, {})
        if early and len(early) >= self._restart.connected:  # nobody here begins it, but they want its result
            sends.append(to(_UP, message))
        return sends

    def tick(self, now: float) -> list[Send]:
        sends = super().tick(now)
        for round_ in self._rounds.values():
            waits = round_.passed_up or round_.given_up or any(part.upload for part in round_.parts.values())
            if waits and not round_.ended and now - round_.asked_up >= ASK:
                round_.asked_up = now
                sends.append(Send(_UP, [], asks=round_.round_id))
        return sends

    def reconnected(self, again: bool) -> list[Send]:
        """Upstream is (back) here: it is told all that it may not know; if it was started `again`, what was before."""
        sends = [to(_UP, describe(codec)) for codec in self._codecs.values()]
        for round_ in self._rounds.values():
            if round_.failure is None and (again or not round_.ended):
                sends += self._all_for_upstream(round_, results=again)
        return sends

    def _all_for_upstream(self, round_: Round, arrived: Iterable[int] = (), *, results: bool = False) -> list[Send]:
        """Everything of a round for a server that has only the parts that begin at `arrived`."""
        out: list[Pieces] = []
        if round_.agreed:
            out.append(self._agreement(round_))
        elif round_.agreed is None and round_.passed_up:
            out.append([round_.passed_up])
        for part in round_.parts.values():
            if part.upload is not None and part.lo not in arrived:
                out.append(part.upload)
            elif part.result is not None and results:
                out.append(part.result)
        if round_.given_up is not None:
            out.append([control.to_bytes(round_.given_up)])
        return [Send(_UP, pieces) for pieces in out]

    @staticmethod
    def _agreement(round_: Round) -> Pieces:
        return [control.to_bytes(control.Agreed(round_.agreed or b""))]

    # Down

    def from_upstream(self, message: control.Control | Frame, now: float) -> list[Send]:
        """What the upstream server says; what cannot be used is asked for again."""
        match message:
            case Frame():
                return self._downward(message, now)
            case control.Which() if message.family in self._codecs:
                return [to(_UP, describe(self._codecs[message.family]))]
            case control.Ask():
                return self._asked(message.round_id)
            case control.Failed():
                return self._failed_upstream(message, now)
        round_ = self._rounds.get(getattr(message, "round_id", -1))
        if round_ is None or round_.ended:
            return []
        if isinstance(message, control.Expired) and (message.lo, message.hi) in round_.spans:
            missing = control.read_ranks(message.ranks, self.rules.workers)
            round_.notes[message.lo, message.hi, UPSTREAM] = frozenset(missing)
        elif isinstance(message, control.Status) and (round_.agreed is not None or not message.proposed):
            return self._all_for_upstream(round_, message.arrived)
        return []

    def _downward(self, received: Frame, now: float) -> list[Send]:
        round_ = self._rounds.get(received.round_id)
        sends: list[Send] = []
        if round_ is None and received.round_id in self._early and received.family in self._codecs:
            round_, sends = self._open_for_listeners(received, now)
        if round_ is None or round_.failure is not None or not round_.same_tensor(received):
            return sends
        sends += self._agree(round_, received, now) if received.kind is Kind.TERMS else self._end(round_, received, now)
        self._account(round_)
        return sends

    def _open_for_listeners(self, received: Frame, now: float) -> tuple[Round | None, list[Send]]:
        """Begin a round that no worker here has begun; some wait for its result."""
        round_ = self._open(UPSTREAM, received, now)
        if round_ is None:
            return None, []
        return round_, [
            send for rank, note in self._early.pop(received.round_id).items() for send in self.abstain(rank, note, now)
        ]

    def _agree(self, round_: Round, received: Frame, now: float) -> list[Send]:
        terms = received.terms(round_.codec, (received.size,))
        if round_.agreed is not None and (terms == round_.terms or round_.ended):
            return []
        # Where others agreed on other terms after a restart upstream, what came under the old ones is of no use.
        round_.parts.clear()
        return [*round_.fix_terms(terms, now), *self._note_finished(round_, now)]

    def _end(self, round_: Round, received: Frame, now: float) -> list[Send]:
        """The sum of a part; it is not looked into here, as every worker does that."""
        span = (received.lo, received.hi)
        if round_.agreed is None or received.digest != round_.terms.digest or span not in round_.spans:
            return []
        part = round_.part(*span)
        missing = round_.notes.get((*span, UPSTREAM), frozenset())
        if part.result is not None or received.count != self.rules.workers - len(missing):
            return []  # who is missing comes before it
        ranks = control.write_ranks(missing, self.rules.workers)
        note = [control.to_bytes(control.Expired(round_.round_id, *span, ranks))] if missing else []
        part.conclude([*note, *received.pieces()])
        round_.touched = now
        listening = frozenset(round_.listening)
        return [Send(listening, part.result or [], place(round_.round_id)), *self._note_finished(round_, now)]

    def _asked(self, round_id: int) -> list[Send]:
        """Others wait for this rack: send again what it has, and ask those whom it waits for."""
        round_ = self._rounds.get(round_id)
        if round_ is None:
            return [to(self.rules.members, control.Ask(round_id))]
        if round_.failure is not None:
            return [to(_UP, control.Abstain(round_id, round_.failure.reason))]
        return [*self._all_for_upstream(round_, results=True), to(round_.missing(), control.Ask(round_id))]

    def _failed_upstream(self, message: control.Failed, now: float) -> list[Send]:
        round_ = self._rounds.get(message.round_id)
        if round_ is None or round_.ended:
            return []
        return super()._fail(round_, message.reason, message.missing, now, next_round=message.next_round)

    def lost_upstream(self, reason: str, now: float) -> list[Send]:
        """There is no upstream server any more: no round can end."""
        open_rounds = [round_ for round_ in self._rounds.values() if not round_.ended]
        return [send for round_ in open_rounds for send in JobAggregator._fail(self, round_, reason, [], now)]
