"""A job's rounds at one shard: what has arrived, what is due, what is sent to whom.

No sockets and no clock: messages and the time come in, messages go out. So every order of arrival, every
duplicate and every deadline can be tested. What cannot be used now is forgotten, never refused: workers ask for what
they miss, and send again what is missing here.
"""

from __future__ import annotations

from sumwire.aggregate.server.books import Books
from sumwire.aggregate.server.part import Part
from sumwire.aggregate.server.round import Round, Send, to
from sumwire.aggregate.server.rules import HISTORY, MAX_OPEN, Rules, place
from sumwire.errors import FrameError, MismatchError
from sumwire.wire import control
from sumwire.wire.frame import Frame
from sumwire.wire.limits import Kind

__all__ = ["HISTORY", "Ledger", "Round", "Rules", "Send"]

RELAY = 1.0
"""Seconds between questions to those whom a round waits for."""


class Ledger(Books):
    """Joins and adds for one job. Every method returns what is to be sent because of it."""

    # What arrives

    def greet(self, rank: int, position: int, now: float) -> list[Send]:
        """A worker is (back) here, and needs nothing of rounds before this one."""
        if position:
            self._positions[rank] = position
        return self._raise_floor(position - 1 - HISTORY, now)

    def frame(self, rank: int, received: Frame, now: float) -> list[Send]:
        """Terms, a payload or, from before a restart, a sum."""
        if received.kind is Kind.PAYLOAD and received.rank != rank:
            raise FrameError(f"worker {rank} sent a payload of rank {received.rank}: it may only speak for itself")
        round_, sends = self._find(rank, received, now)
        if round_ is not None:
            sends += self._take(round_, rank, received, now)
            self._book(round_)
        return sends

    def _take(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        try:
            if received.kind is Kind.TERMS:
                return self._propose(round_, rank, received, now)
            if received.kind is Kind.PAYLOAD:
                return self._add(round_, rank, received, now)
            return self._adopt(round_, rank, received, now)
        except MismatchError as error:
            return self._cannot_use(round_, rank, str(error), now)

    def agreed(self, rank: int, received: Frame, now: float) -> list[Send]:
        """Terms that another shard has joined, or this one before it was restarted: they hold as they are."""
        round_, sends = self._find(rank, received, now)
        if round_ is None:
            return sends
        terms = received.terms(round_.codec, (received.size,))
        if round_.agreed is None:
            sends += round_.fix_terms(terms, now)
        elif terms != round_.terms:
            sends += self._cannot_use(round_, rank, "it was given other terms than the others", now)
        self._book(round_)
        return sends

    def abstain(self, rank: int, message: control.Abstain, now: float) -> list[Send]:
        """A worker sends nothing more for a round; it still wants the result."""
        over = self._over(rank, message.round_id)
        if over is not None:
            return over
        round_ = self._rounds.get(message.round_id)
        if round_ is None:  # which nobody has begun: kept until somebody does
            self._early.setdefault(message.round_id, {})[rank] = message
            if len(self._early) > MAX_OPEN:
                del self._early[min(self._early, key=place)]
            return []
        round_.listening.add(rank)
        if round_.failure is not None:
            return [to({rank}, round_.failure)]
        sends = [Send(frozenset({rank}), [round_.agreed])] if round_.agreed else []
        sends += round_.results(rank)
        if round_.agreed is None or rank in round_.missing():  # else it has sent all that there is
            sends += self._do_without(round_, rank, message.reason, now)
        self._book(round_)
        return sends

    def expired(self, rank: int, message: control.Expired) -> list[Send]:
        """Who is missing from a sum that a worker is about to hand back."""
        round_ = self._rounds.get(message.round_id)
        if round_ is not None and round_.failure is None and (message.lo, message.hi) in round_.spans:
            round_.notes[message.lo, message.hi] = rank, control.read_ranks(message.ranks)
        return []

    def ask(self, rank: int, round_id: int, now: float) -> list[Send]:
        """What a worker should know of a round, and which of its messages are here. Asks those it waits for, too."""
        over = self._over(rank, round_id)
        if over is not None:
            return over
        round_, me = self._rounds.get(round_id), frozenset({rank})
        if round_ is None:
            return [to(me, control.Status(round_id, 0, []))]
        round_.listening.add(rank)
        if round_.failure is not None:
            return [to(me, round_.failure)]
        arrived = [part.lo for part in round_.parts.values() if rank in part.arrived]
        sends = [to(me, control.Status(round_id, int(rank in round_.proposed), arrived[: control.MAX_LIST]))]
        if round_.agreed:
            sends.append(Send(me, [round_.agreed]))
        if not round_.finished and now - round_.asked >= RELAY:
            round_.asked = now
            sends.append(to(set(round_.missing()) - {rank}, control.Ask(round_id)))
        return sends + round_.results(rank)

    def tick(self, now: float) -> list[Send]:
        """What is due because time has passed."""
        sends: list[Send] = []
        for round_ in list(self._rounds.values()):
            if round_.finished or place(round_.round_id) <= self._floor:
                continue
            if self.rules.deadline is not None and now - round_.since >= self.rules.deadline:
                sends += self._advance(round_, now, force=True)
            if not round_.finished and now - round_.touched >= self.rules.timeout:
                missing = round_.missing()
                names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                sends += self._fail(round_, f"workers {names} sent nothing for {self.rules.timeout:g} s", missing, now)
            self._book(round_)
        return sends

    # Rounds

    def _find(self, rank: int, received: Frame, now: float) -> tuple[Round | None, list[Send]]:
        """The round that a frame is of, if it can be used; and what its sender must know."""
        sends = self._over(rank, received.round_id)
        if sends is not None:
            return None, sends
        if received.family not in self._codecs:
            return None, [to({rank}, control.Which(received.family))]
        round_ = self._rounds.get(received.round_id)
        sends = []
        if round_ is None:
            round_ = self._open(received, now)
            if round_ is None:
                return None, []
            round_.listening.add(rank)
            for who, note in self._early.pop(received.round_id, {}).items():
                sends += self.abstain(who, note, now)
        round_.listening.add(rank)
        if round_.failure is None and not round_.same_tensor(received):
            reason = f"it sends {received.size} values of {received.family}, others {round_.size} of "
            sends += self._cannot_use(round_, rank, reason + round_.codec.family, now, fatal=True)
            return None, sends
        if round_.failure is not None:
            return None, [*sends, to({rank}, round_.failure)]
        return round_, sends

    def _propose(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        if rank in round_.proposed:
            self.duplicates += 1
        else:
            self.tally.proposed(rank, now - round_.began)
        if round_.agreed is not None:
            if rank not in round_.proposed:
                self.late += 1
                self.tally.late(rank)
            round_.proposed.add(rank)
            return [Send(frozenset({rank}), [round_.agreed])] if round_.agreed else []
        terms = received.terms(round_.codec, (received.size,))
        if rank not in round_.proposed:
            round_.proposed.add(rank)
            round_.touched = now
        round_.terms = terms if round_.terms is None else round_.terms | terms  # a duplicate changes nothing
        return self._advance(round_, now, force=False)

    def _add(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        if round_.agreed is None:
            return []  # it comes again
        part = round_.part(received.lo, received.hi)
        if part.result is not None:
            known = rank in part.arrived
            self.duplicates += known
            if not known:
                self.late += 1
                self.tally.late(rank)
                self.tally.arrived(rank, part.delay(now))
            return [Send(frozenset({rank}), part.result)]
        if rank in part.arrived:
            self.duplicates += 1
            return []
        part.add(received.payload(round_.codec, round_.terms))
        part.spread, round_.touched = part.delay(now), now
        self.tally.arrived(rank, part.spread)
        return self._sum(round_, part, now, force=False)

    def _adopt(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        if round_.agreed is None:
            return []
        part = round_.part(received.lo, received.hi)
        teller, missing = round_.notes.get((part.lo, part.hi), (-1, set()))
        if part.result is not None or (received.count < self.rules.workers and teller != rank):
            return []
        sends = [Send(frozenset(round_.listening), part.adopt(received.sum(round_.codec, round_.terms), missing))]
        return sends + self._note_finished(round_, now)

    def _advance(self, round_: Round, now: float, *, force: bool) -> list[Send]:
        """Go on as far as what has arrived allows; with `force`, as far as anything has."""
        if round_.agreed is None:
            if not round_.proposed or not (force or round_.enough_terms()):
                return []
            self.tally.joined(now - round_.began)
            return round_.fix_terms(round_.terms, now)
        return [send for part in round_.parts.values() for send in self._sum(round_, part, now, force=force)]

    def _sum(self, round_: Round, part: Part, now: float, *, force: bool) -> list[Send]:
        if part.result is not None or not (round_.enough(part) or (force and part.arrived)):
            return []
        return [Send(frozenset(round_.listening), part.complete()), *self._note_finished(round_, now)]

    # Ends

    def _cannot_use(self, round_: Round, rank: int, why: str, now: float, *, fatal: bool = False) -> list[Send]:
        """What a worker sends does not fit what the others do: the round goes on without it, if it can."""
        if round_.finished:  # nothing that comes later may change what others have
            return [to({rank}, control.Failed(round_.round_id, [], f"worker {rank}: {why}", 0))]
        if fatal:
            return self._fail(round_, f"worker {rank}: {why}", [], now)
        sends = self._do_without(round_, rank, why, now)
        if round_.agreed:
            sends.append(Send(frozenset({rank}), [round_.agreed]))
        return sends + round_.results(rank)

    def _do_without(self, round_: Round, rank: int, why: str, now: float) -> list[Send]:
        round_.abstained[rank] = why
        if self.rules.workers - len(round_.abstained) < self.rules.least:
            return self._fail(round_, f"worker {rank} takes no part: {why}", [rank], now)
        return self._advance(round_, now, force=False)
