"""A job's rounds at one shard: what has arrived, what is due, what is sent to whom.

No sockets and no clock: messages and the time come in, messages go out. So every order of arrival, every
duplicate and every deadline can be tested. What cannot be used now is forgotten, never refused: workers ask for what
they miss, and send again what is missing here.
"""

from __future__ import annotations

import logging

from sumwire.aggregate.protocol import place
from sumwire.aggregate.server.options import MAX_OPEN, MAX_OPENED
from sumwire.aggregate.server.recovery import RecoveringTable
from sumwire.aggregate.server.round import Part, Round, Send, to
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.codec.options import differences
from sumwire.errors import FrameError, MismatchError
from sumwire.wire import control
from sumwire.wire.frame import Frame, parse
from sumwire.wire.limits import Kind

_log = logging.getLogger(__name__)

RECOVERY = 3.0
"""Seconds that those have who had a round's sum before a restart, before another one is made."""
RELAY = 1.0
"""Seconds between questions to those whom a round waits for."""


class JobAggregator(RecoveringTable):
    """Joins and adds for one job. Every method returns what is to be sent because of it."""

    # What arrives

    def frame(self, rank: int, received: Frame, now: float) -> list[Send]:
        """Terms, a payload or, from before a restart, a sum."""
        if received.kind is Kind.PAYLOAD and received.rank != rank:
            raise FrameError(f"worker {rank} sent a payload of rank {received.rank}: it may only speak for itself")
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
        if not round_.ended and (round_.agreed is None or rank in round_.missing()):  # else it has sent all there is
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
        arrived = [part.lo for part in round_.parts.values() if rank in part.arrived]
        messages = len(round_.proposed) + sum(len(part.arrived) for part in round_.parts.values())
        proposed = int(rank in round_.proposed)
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
            elif self._restart.concerns(place(round_.round_id)):
                # It may have waited for a sum from before the restart.
                sends += self._advance(round_, now, force=False)
            if not round_.ended and now - round_.touched >= self.rules.timeout:
                missing = round_.missing()
                names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                reason = f"workers {names} sent nothing for {self.rules.timeout:g} s{self._shortage}"
                sends += self._fail(round_, reason, missing, now)
            self._account(round_)
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
            round_ = self._open(rank, received, now)
            if round_ is None:
                return None, []
            round_.listening.add(rank)
            for who, note in self._early.pop(received.round_id, {}).items():
                sends += self.abstain(who, note, now)
        round_.listening.add(rank)
        if round_.failure is None and not round_.same_tensor(received):
            sends += self._cannot_use(round_, rank, self._difference(round_, received), now, fatal=True)
            return None, sends
        if round_.failure is not None:
            return None, [*sends, to({rank}, round_.failure)]
        return round_, sends

    def _difference(self, round_: Round, received: Frame) -> str:
        """What a worker's tensor and codec have that those of the others do not."""
        mine, theirs = self._codecs[received.family].description(), round_.codec.description()
        why = differences(mine, theirs, names=("it", "the round"))
        if received.size != round_.size:
            sizes = f"it sends a tensor of {received.size} values, the round is of {round_.size}"
            why = f"{sizes}; {why}" if why else sizes
        return f"{why or 'its codec is of another release'}: all workers must pass equal shapes and codec options"

    def _propose(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        if rank in round_.proposed:
            self.duplicates += 1
        else:
            self.statistics.proposed(rank, now - round_.began)
        if round_.agreed is not None:
            if rank not in round_.proposed:
                self.late += 1
                self.statistics.late(rank)
            round_.proposed.add(rank)
            return [Send(frozenset({rank}), [round_.agreed])] if round_.agreed else []
        terms = received.terms(round_.codec, (received.size,))
        if rank not in round_.proposed:
            round_.proposed.add(rank)
            round_.touched = now
            if self.rules.scale_cap is not None:
                round_.proposals.append(terms)
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
                self.statistics.late(rank)
                self.statistics.arrived(rank, part.delay(now))
            return [Send(frozenset({rank}), part.result)]
        if rank in part.arrived:
            self.duplicates += 1
            return []
        part.add(received.payload(round_.codec, round_.terms))
        part.spread, round_.touched = part.delay(now), now
        self.statistics.arrived(rank, part.spread)
        return self._sum(round_, part, now, force=False)

    def _advance(self, round_: Round, now: float, *, force: bool) -> list[Send]:
        """Go on as far as what has arrived allows; with `force`, as far as anything has."""
        if round_.agreed is None:
            if not round_.proposed or not (force or round_.enough_terms()):
                return []
            self.statistics.joined(now - round_.began)
            if round_.proposals and self.rules.scale_cap is not None:
                round_.terms = round_.terms.join_capped(round_.proposals, self.rules.scale_cap)
                round_.proposals.clear()
            return [*round_.fix_terms(round_.terms, now), *self._note_finished(round_, now)]
        return [send for part in round_.parts.values() for send in self._sum(round_, part, now, force=force)]

    def _sum(self, round_: Round, part: Part, now: float, *, force: bool) -> list[Send]:
        if part.result is not None or not (round_.enough(part) or (force and part.arrived)):
            return []
        having = self._restart.past(place(round_.round_id)) - round_.abstained.keys()
        if having - part.arrived and now - round_.began < RECOVERY:
            return []  # its sum was made before the restart, and some have it: another one must not be made
        if not round_.joined_elsewhere:  # or it was in flight before the restart, and sums of later ones may still come
            self._restart.summed(place(round_.round_id))
        result = Send(frozenset(round_.listening), part.complete(), place(round_.round_id))
        return [result, *self._note_finished(round_, now)]

    # Ends

    def _cannot_use(self, round_: Round, rank: int, why: str, now: float, *, fatal: bool = False) -> list[Send]:
        """What a worker sends does not fit what the others do: the round goes on without it, if it can."""
        if round_.ended:  # nothing that comes later may change what others have
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
