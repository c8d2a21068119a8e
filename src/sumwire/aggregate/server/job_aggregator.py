"""A job's rounds at one shard: what has arrived, what is due, what is sent to whom.

No sockets and no clock: messages and the time come in, messages go out. So every order of arrival, every
duplicate and every deadline can be tested. What cannot be used now is forgotten, never refused: workers ask for what
they miss, and send again what is missing here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sumwire.aggregate.protocol import place
from sumwire.aggregate.server.options import MAX_OPEN, MAX_OPENED
from sumwire.aggregate.server.part import Part
from sumwire.aggregate.server.round import Round, Send, to
from sumwire.aggregate.server.subtrees import SubtreeTable
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.errors import FrameError, MismatchError
from sumwire.wire import control
from sumwire.wire.frame import Frame, parse
from sumwire.wire.limits import Kind

_log = logging.getLogger(__name__)

RECOVERY = 3.0
"""Seconds that those have who had a round's sum before a restart, before another one is made."""
RELAY = 1.0
"""Seconds between questions to those whom a round waits for."""


class JobAggregator(SubtreeTable):
    """Joins and adds for one job. Every method returns what is to be sent because of it."""

    # What arrives

    def frame(self, rank: int, received: Frame, now: float) -> list[Send]:
        """Terms, a payload or, from before a restart, a sum."""
        if received.kind is Kind.PAYLOAD and received.rank not in self.speaks_for(rank):
            raise FrameError(f"{self.who(rank)} sent a payload of rank {received.rank}: it may only speak for itself")
        self._sent[rank] = max(place(received.round_id), self._sent.get(rank, -1))
        round_, sends = self._find(rank, received, now)
        if round_ is not None:
            sends += self._take(round_, rank, received, now)
            self._account(round_)
        return sends

    def _take(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        try:
            if received.kind is Kind.TERMS:
                return self._propose(round_, rank, received, now)
            if received.kind is Kind.PAYLOAD:
                return self._add(round_, rank, received, now)
            if (received.lo, received.hi, rank) in round_.holding:
                return self._contribute(round_, rank, received, now)
            return self._recover(round_, rank, received, now)
        except MismatchError as error:
            return self._cannot_use(round_, rank, str(error), now)

    def told(self, rank: int, message: control.Control, now: float) -> list[Send]:
        """Anything else than a frame."""
        match message:
            case control.Describe():
                self.learn(message)
            case control.Measured():
                self.statistics.measured(message.nmse)
            case control.Agreed():
                return self.agreed(rank, parse(message.frame), now)
            case control.Abstain():
                return self.abstain(rank, message, now)
            case control.Expired():
                return self.expired(rank, message)
            case control.Holds():
                return self.holds(rank, message, now)
            case control.Ask():
                return self.ask(rank, message.round_id, now)
            case _:
                raise FrameError(f"{message.word.name} is not for an aggregator")
        return []

    def agreed(self, rank: int, received: Frame, now: float) -> list[Send]:
        """Terms that another shard has joined, or this one before it was restarted: they hold as they are."""
        round_, sends = self._find(rank, received, now)
        if round_ is None:
            return sends
        terms = received.terms(round_.codec, (received.size,))
        if round_.agreed is None and self._must_join_itself(round_.round_id):
            if not self._restart.knew_another(rank):
                raise FrameError(
                    "this server caps scales, so it joins terms itself and cannot use those that workers agreed on "
                    "elsewhere: propose terms to it, or start it without --scale-cap"
                )
            if rank not in self._restart.survivors():
                return sends  # until a second worker confirms that there was a restart
        if round_.agreed is None:
            round_.joined_elsewhere = True
            sends += [*round_.fix_terms(terms, now), *self._note_finished(round_, now)]
        elif terms != round_.terms:
            sends += self._cannot_use(round_, rank, "it was given other terms than the others", now)
        self._account(round_)
        return sends

    def _must_join_itself(self, round_id: int) -> bool:
        """Whether terms from elsewhere would get around the cap. Those of a second exchange follow from a sum."""
        return self.rules.scale_cap is not None and self._shard == 0 and not round_id & FOLLOW_UP

    def abstain(self, rank: int, message: control.Abstain, now: float) -> list[Send]:
        """A worker sends nothing more for a round; it still wants the result."""
        message = control.Abstain(message.round_id, message.reason[: control.MAX_REASON])
        over = self._over(rank, message.round_id)
        if over is not None:
            return over
        round_ = self._rounds.get(message.round_id)
        if round_ is None:  # which nobody has begun: kept until somebody does
            mine = [r for r, who in self._early.items() if rank in who]
            if len(mine) >= MAX_OPENED:
                del self._early[min(mine, key=place)][rank]
            self._early.setdefault(message.round_id, {})[rank] = message
            if len(self._early) > MAX_OPEN:
                del self._early[min(self._early, key=place)]
            return []
        round_.listening.add(rank)
        if round_.failure is not None:
            return [to({rank}, round_.failure)]
        sends = [Send(frozenset({rank}), [round_.agreed])] if round_.agreed else []
        sends += round_.results(rank)
        waited_for = round_.agreed is None or not set(self.speaks_for(rank)).isdisjoint(round_.missing())
        if not round_.ended and waited_for:  # else it has sent all there is
            sends += self._do_without(round_, rank, message.reason, now)
        self._account(round_)
        return sends

    def ask(self, rank: int, round_id: int, now: float) -> list[Send]:
        """What a worker should know of a round, and which of its messages are here. Asks those it waits for, too."""
        over = self._over(rank, round_id)
        if over is not None:
            return over
        round_, me = self._rounds.get(round_id), frozenset({rank})
        if round_ is None:
            return [to(me, control.Status(round_id, 0, [], 0))]
        round_.listening.add(rank)
        if round_.failure is not None:
            return [to(me, round_.failure)]
        mine = set(self.speaks_for(rank))
        arrived = [part.lo for part in round_.parts.values() if mine <= part.settled]
        messages = len(round_.proposed) + sum(len(part.arrived) for part in round_.parts.values())
        proposed = int(mine <= round_.proposed)
        sends = [to(me, control.Status(round_id, proposed, arrived[: control.MAX_LIST], messages))]
        if round_.agreed:
            sends.append(Send(me, [round_.agreed]))
        if not round_.ended and now - round_.asked >= RELAY:
            round_.asked = now
            sends.append(to(set(round_.missing()) - {rank}, control.Ask(round_id)))
        return sends + round_.results(rank)

    def tick(self, now: float) -> list[Send]:
        """What is due because time has passed."""
        sends: list[Send] = []
        for round_ in list(self._rounds.values()):
            if round_.ended or place(round_.round_id) <= self._floor:
                continue
            if self.rules.deadline is not None and now - round_.since >= self.rules.deadline:
                sends += self._advance(round_, now, force=True)
            elif self.rules.linger or self._restart.concerns(place(round_.round_id)):
                # It may have waited for somebody, or for a sum from before the restart.
                sends += self._advance(round_, now, force=False)
            if self._overdue(round_, now):
                missing = round_.missing()
                names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                reason = f"workers {names} sent nothing for {self.rules.timeout:g} s{self._shortage}"
                sends += self._lose(round_, reason, missing, now)
            self._account(round_)
        return sends

    def _overdue(self, round_: Round, now: float) -> bool:
        return not round_.ended and now - round_.touched >= self.rules.timeout

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
            round_ = self._open(rank, received, now)
            if round_ is None:
                return None, []
            round_.listening.add(rank)
            for who, note in self._early.pop(received.round_id, {}).items():
                sends += self.abstain(who, note, now)
        round_.listening.add(rank)
        if round_.failure is None and not round_.same_tensor(received):
            why = round_.difference(self._codecs[received.family], received)
            sends += self._cannot_use(round_, rank, why, now, fatal=True)
            return None, sends
        if round_.failure is not None:
            return None, [*sends, to({rank}, round_.failure)]
        return round_, sends

    def _propose(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        known = rank in round_.proposed
        if known:
            self.duplicates += 1
        else:
            self.statistics.proposed(rank, now - round_.began)
        round_.proposed.update(self.speaks_for(rank))
        if round_.agreed is not None:
            if not known:
                self.late += 1
                self.statistics.late(rank)
            return [Send(frozenset({rank}), [round_.agreed])] if round_.agreed else []
        terms = received.terms(round_.codec, (received.size,))
        if not known:
            round_.touched = now
            if self.rules.scale_cap is not None:
                round_.proposals.append(terms)
        round_.terms = terms if round_.terms is None else round_.terms | terms  # a duplicate changes nothing
        return self._advance(round_, now, force=False)

    def _add(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        if round_.agreed is None:
            return []  # it comes again
        part, sender = round_.part(received.lo, received.hi), received.rank
        if part.closed or sender in part.settled:
            return self._too_late(part, rank, now, known=sender in part.arrived)
        part.add(received.payload(round_.codec, round_.terms), [sender])
        return self._added(round_, part, rank, now)

    def _added(self, round_: Round, part: Part, rank: int, now: float) -> list[Send]:
        """Something new is in a part."""
        part.spread, round_.touched = part.delay(now), now
        self.statistics.arrived(rank, part.spread)
        return self._sum(round_, part, now, force=False)

    def _advance(self, round_: Round, now: float, *, force: bool) -> list[Send]:
        """Go on as far as what has arrived allows; with `force`, as far as anything has."""
        if round_.agreed is None:
            enough = round_.enough_terms() and not self._lingers(round_, round_.proposed, now)
            if not round_.proposed or not (force or enough):
                return []
            if round_.proposals and self.rules.scale_cap is not None:
                round_.terms = round_.terms.join_capped(round_.proposals, self.rules.scale_cap)
                round_.proposals.clear()
            return self._joined(round_, now)
        return [send for part in round_.parts.values() for send in self._sum(round_, part, now, force=force)]

    def _joined(self, round_: Round, now: float) -> list[Send]:
        """The terms of all whom the round waits for are here."""
        self.statistics.joined(now - round_.began)
        return [*round_.fix_terms(round_.terms, now), *self._note_finished(round_, now)]

    def _sum(self, round_: Round, part: Part, now: float, *, force: bool) -> list[Send]:
        enough = round_.enough(part) and not self._lingers(round_, part.settled, now)
        if part.closed or not (enough or (force and part.arrived)):
            return []
        having = self._restart.past(place(round_.round_id)) - round_.abstained.keys()
        if having - part.arrived and now - round_.began < RECOVERY:
            return []  # its sum was made before the restart, and some have it: another one must not be made
        if not round_.joined_elsewhere:  # or it was in flight before the restart, and sums of later ones may still come
            self._restart.summed(place(round_.round_id))
        return self._summed(round_, part, now)

    def _summed(self, round_: Round, part: Part, now: float) -> list[Send]:
        """The payloads of all whom the round waits for are in a part."""
        result = Send(frozenset(round_.listening), part.complete(), place(round_.round_id))
        return [result, *self._note_finished(round_, now)]

    # Ends

    def _cannot_use(self, round_: Round, rank: int, why: str, now: float, *, fatal: bool = False) -> list[Send]:
        """What a worker sends does not fit what the others do: the round goes on without it, if it can."""
        if round_.ended:  # nothing that comes later may change what others have
            return [to({rank}, control.Failed(round_.round_id, [], f"{self.who(rank)}: {why}", 0))]
        if fatal:
            return self._fail(round_, f"{self.who(rank)}: {why}", [], now)
        sends = self._do_without(round_, rank, why, now)
        if round_.agreed:
            sends.append(Send(frozenset({rank}), [round_.agreed]))
        return sends + round_.results(rank)

    def _do_without(self, round_: Round, rank: int, why: str, now: float) -> list[Send]:
        mine = self.speaks_for(rank)
        round_.abstained.update(dict.fromkeys(mine, why))
        if len(self.rules.members) - len(round_.abstained) < self.rules.least:
            return self._lose(round_, f"{self.who(rank)} takes no part: {why}", mine, now)
        return self._advance(round_, now, force=False)

    def _lose(self, round_: Round, reason: str, missing: Iterable[int], now: float) -> list[Send]:
        """Too few workers take part for a sum."""
        return self._fail(round_, reason, missing, now)
