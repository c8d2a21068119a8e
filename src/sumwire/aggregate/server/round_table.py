"""Which rounds of a job there are at one shard, what memory they have, and how they begin and end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from sumwire.aggregate.protocol import HISTORY, name, place
from sumwire.aggregate.server.memory import Memory, Urgency
from sumwire.aggregate.server.options import MAX_ENDED, MAX_FAMILIES, MAX_OPEN, MAX_OPENED, Rules
from sumwire.aggregate.server.part import KEPT_IN_MEMORY
from sumwire.aggregate.server.restart import MIN_SURVIVORS, Restart
from sumwire.aggregate.server.round import TERMS_IN_MEMORY, Round, Send, Stage, to
from sumwire.aggregate.server.statistics import JobStatistics
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.codec.base import Codec
from sumwire.codec.options import same
from sumwire.errors import ConfigError, MismatchError
from sumwire.wire import control
from sumwire.wire.frame import Frame, build
from sumwire.wire.header import Header
from sumwire.wire.limits import Kind

_log = logging.getLogger(__name__)


class RoundTable:
    """Opens rounds, closes them, and knows which are over. `JobAggregator` does what is in between."""

    def __init__(
        self,
        rules: Rules,
        shard: int = 0,
        shards: int = 1,
        memory: Memory | None = None,
        job: str = "default",
        first_round: int = 0,
    ) -> None:
        self.rules, self._job, self.first_round = rules, job, first_round
        self._shard, self._shards, self._memory = shard, shards, memory or Memory(1 << 40)
        self._codecs: dict[str, Codec] = {}
        self._rounds: dict[int, Round] = {}
        self._early: dict[int, dict[int, control.Abstain]] = {}
        """Who abstains from rounds that nobody has begun."""
        self._newest = -1
        """The newest round that is finished."""
        self._floor = -1
        """Rounds up to here are over and forgotten."""
        self._alone: deque[int] = deque()
        """Rounds that ended with too few workers to say where the job is, and whose results are kept."""
        self._ended: dict[int, None] = {}
        """Such rounds of which only that is kept."""
        self._restart = Restart(len(rules.members))
        self._sent: dict[int, int] = {}
        """By rank: the newest round of which something came from it."""
        self.held = 0
        """Bytes of memory that rounds have."""
        self.oldest: tuple[float, int] | None = None
        """When the lowest round in flight began, and its place: kept up to date for other threads to read."""
        self.open_rounds = 0
        self._closed = False
        self.finished = self.failed = self.duplicates = self.late = 0
        self.statistics = JobStatistics()

    @property
    def next_round(self) -> int:
        """Where a worker that has just begun goes on; 0 if there were no rounds yet."""
        if self.oldest is not None:
            return min(self.oldest[1], FOLLOW_UP - 1)
        here = min(self._restart.positions.values(), default=0)
        return min(max(self._newest + 1, self._floor + 1, here), FOLLOW_UP - 1)

    def _refresh(self) -> None:
        """Say what is open, for other threads."""
        in_flight = [(place(r), round_.began) for r, round_ in self._rounds.items() if not round_.ended]
        self.open_rounds = len(in_flight)
        first = min(in_flight, default=None)
        self.oldest = None if first is None else (first[1], first[0])

    @property
    def _shortage(self) -> str:
        """Why what workers sent may have been turned away."""
        if self._memory.has_room(0, Urgency.LATER):
            return ""
        return (
            f" (or was turned away: {self._memory.limit >> 20} MiB of memory are in use; raise the server's --memory)"
        )

    @property
    def floor(self) -> int:
        """Rounds up to here are over and forgotten."""
        return self._floor

    def _lingers(self, round_: Round, arrived: set[int], now: float) -> bool:
        """Whether a round that could go on waits for connected workers that have not come.

        Only for those that have sent something lately: others wait for parameters, say, and will not come.
        """
        if now - round_.touched >= self.rules.linger:
            return False
        since = place(round_.round_id) - HISTORY
        there = self._restart.ranks - arrived - round_.abstained.keys()
        return any(self._newest < 0 or self._sent.get(rank, since - 1) >= since for rank in there)

    def leave(self, rank: int) -> None:
        """A worker is gone; its payloads count, but not what it said of itself."""
        self._restart.leave(rank)
        self._sent.pop(rank, None)

    def close(self) -> None:
        """Give all memory back. The aggregator is of no use any more."""
        self._closed = True
        self._memory.charge(-self.held)
        self.held = 0
        self._rounds.clear()
        self._refresh()

    def cost(self, header: Header) -> int:
        """Bytes of memory that a frame will take, with what must be allocated because of it."""
        codec, round_ = self._codecs.get(header.family), self._rounds.get(header.round_id)
        if codec is None:
            return header.length
        if header.kind is Kind.TERMS:
            # In memory a scale has 4 bytes, even where one byte holds it on the wire.
            return TERMS_IN_MEMORY * max(header.length, 4 * header.hi)
        if not codec.adds_at_once:
            return KEPT_IN_MEMORY * header.length
        if round_ is not None and (header.lo, header.hi) in round_.parts:
            return header.length
        terms = None if round_ is None or round_.stage is not Stage.ADDING else round_.terms
        return header.length + codec.memory(header.size, terms, header.lo, header.hi)

    def work(self, header: Header) -> int:
        """Bytes that must be gone through when a frame arrives: its own, and those that it completes a sum of.

        Those of a fast codec count for less.
        """
        round_ = self._rounds.get(header.round_id)
        part = None if round_ is None else round_.parts.get((header.lo, header.hi))
        nbytes = header.length + (0 if part is None else part.held)
        codec = self._codecs.get(header.family)
        return nbytes if codec is None else int(nbytes * codec.work_per_byte)

    def learn(self, description: control.Describe) -> None:
        """Build the codec that frames of this family are of."""
        known = self._codecs.get(description.family)
        if known is not None:
            # Members of a family may differ in bits, but all get the same sums.
            same("form of sums", known.sum_form, build(description).sum_form, "use this codec")
            return
        if len(self._codecs) >= MAX_FAMILIES:
            raise ConfigError(f"a job may use {MAX_FAMILIES} codecs, and this is one more: use fewer different options")
        workers = description.options.get("workers")
        if workers != self.rules.workers:  # before anything is built for them
            raise MismatchError(
                f"the codec is built for {workers} workers, the server has {self.rules.workers}: build it with "
                f"workers={self.rules.workers}, or start the server with --workers {workers}"
            )
        codec = build(description)
        self._codecs[codec.family] = codec

    def _open(self, rank: int, received: Frame, now: float) -> Round | None:
        """Begin a round, if this frame can."""
        codec, round_id = self._codecs[received.family], received.round_id
        # Other payloads need terms first, and the size that they claim is backed by nothing.
        if received.kind is not Kind.TERMS and codec.agrees:
            return None
        mine = sum(round_.opener == rank and not round_.ended for round_ in self._rounds.values())
        if self.open_rounds >= MAX_OPEN or mine >= MAX_OPENED:
            return None
        spans = frozenset(codec.parts(received.size, self._shard, self._shards))
        round_ = Round(self.rules, round_id, codec, received.size, spans, rank, now, now, now)
        if not codec.agrees:
            round_.terms, round_.agreed = codec.empty_terms((received.size,)), b""
        self._rounds[round_id] = round_
        return round_

    def _fail(
        self, round_: Round, reason: str, missing: Iterable[int], now: float, *, next_round: int = 0
    ) -> list[Send]:
        if round_.failure is not None:
            return []
        round_.fail(control.Failed(round_.round_id, list(missing)[:1024], reason[: control.MAX_REASON], next_round))
        self._account(round_)
        self._note_failed(round_, reason)
        assert round_.failure is not None
        return [to(round_.listening, round_.failure), *self._note_finished(round_, now)]

    def _note_failed(self, round_: Round, reason: str) -> None:
        self.failed += 1
        self.statistics.failed(round_.round_id, reason)
        # A worker may have written the reason: it must not look like another line.
        plain = reason.encode("unicode_escape").decode()
        _log.warning("job %s: %s failed: %s", self._job, name(round_.round_id), plain)

    def _note_finished(self, round_: Round, now: float) -> list[Send]:
        if not round_.ended:
            return []
        if round_.stage is Stage.FINISHED:
            self.finished += 1
            self.statistics.ended(now - round_.began)
            for part in round_.parts.values():
                self.statistics.summed(len(part.arrived), round_.codec.headroom, part.spread)
                moved = len(part.arrived) + len(round_.listening)
                self.statistics.fp32 += 4 * moved * round_.codec.coordinates(round_.size, part.lo, part.hi)
        if len(round_.taking_part) < self._crowd:
            return self._note_alone(round_)
        self._newest = max(self._newest, place(round_.round_id))
        return self._raise_floor(self._newest - HISTORY, now)

    @property
    def _crowd(self) -> int:
        """Workers without which a round does not move the job: one that runs ahead by itself leaves nobody behind."""
        return max(1, min(MIN_SURVIVORS, self.rules.needed, self._restart.connected))

    def _note_alone(self, round_: Round) -> list[Send]:
        """Keep results of the last few such rounds; of others, that they are over."""
        self._alone.append(round_.round_id)
        if len(self._alone) > HISTORY:
            old = self._rounds.pop(self._alone.popleft(), None)
            if old is not None:
                self._charge(-old.accounted)
                self._ended[old.round_id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return []

    def _raise_floor(self, floor: int, now: float) -> list[Send]:
        """Rounds up to this one are over: nobody whom they wait for will come."""
        if floor <= self._floor:
            return []
        self._floor = floor
        old = [self._rounds.pop(r) for r in sorted(self._rounds) if place(r) <= floor]
        for round_ in old:
            self._charge(-round_.accounted)
            round_.accounted = 0
        self._refresh()
        for known in (self._early, self._ended):
            for r in [r for r in known if place(r) <= floor]:
                del known[r]
        sends: list[Send] = []
        for round_ in old:
            if not round_.ended:
                failure = self._gone(round_.round_id)
                self._note_failed(round_, failure.reason)
                sends.append(to(round_.listening, failure))
        return sends

    def _over(self, rank: int, round_id: int) -> list[Send] | None:
        if place(round_id) > self._floor and round_id not in self._ended:
            return None
        self.late += 1
        self.statistics.late(rank)
        return [to({rank}, self._gone(round_id))]

    def _gone(self, round_id: int) -> control.Failed:
        at = self.next_round
        return control.Failed(round_id, [], f"the round is over: the job is at round {at}", at)

    def _account(self, round_: Round) -> None:
        """Keep `held`, and what other threads read, right."""
        if self._rounds.get(round_.round_id) is round_ and not self._closed:
            held = round_.held
            self._charge(held - round_.accounted)
            round_.accounted = held
        self._refresh()

    def _charge(self, nbytes: int) -> None:
        self.held += nbytes
        self._memory.charge(nbytes)
