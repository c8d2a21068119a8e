"""Which rounds of a job there are at one shard, what memory they have, and how they begin and end."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sumwire.aggregate.server.round import Round, Send, to
from sumwire.aggregate.server.rules import HISTORY, MAX_FAMILIES, MAX_OPEN, SECOND, Rules, name, place
from sumwire.aggregate.server.spans import coordinates, spans_of
from sumwire.aggregate.server.tally import Tally
from sumwire.codec.sparse import Sparse
from sumwire.codec.sparse_parts import SparseTerms
from sumwire.errors import ConfigError, MismatchError
from sumwire.wire import control
from sumwire.wire.codecs import AnyCodec, build
from sumwire.wire.frame import Frame
from sumwire.wire.limits import Kind

_log = logging.getLogger(__name__)


class Books:
    """Opens rounds, closes them, and knows which are over. `Ledger` is about what is in between."""

    def __init__(
        self, rules: Rules, shard: int = 0, shards: int = 1, memory: int = 1 << 40, job: str = "default"
    ) -> None:
        self.rules, self._job = rules, job
        self._shard, self._shards, self._memory = shard, shards, memory
        self._codecs: dict[str, AnyCodec] = {}
        self._rounds: dict[int, Round] = {}
        self._early: dict[int, dict[int, control.Abstain]] = {}
        """Who abstains from rounds that nobody has begun."""
        self._newest = -1
        """The newest round that is finished."""
        self._floor = -1
        """Rounds up to here are over and forgotten."""
        self._positions: dict[int, int] = {}
        """Where workers were when they came back."""
        self.held = 0
        """Bytes of memory that rounds have."""
        self.finished = self.failed = self.duplicates = self.late = 0
        self.tally = Tally()

    @property
    def open_rounds(self) -> int:
        return sum(not round_.finished for round_ in self._rounds.values())

    @property
    def oldest_open(self) -> int | None:
        """The lowest round under way."""
        return min((place(r) for r, round_ in self._rounds.items() if not round_.finished), default=None)

    @property
    def next_round(self) -> int:
        """Where a worker that has just begun goes on."""
        oldest = self.oldest_open
        if oldest is None:
            oldest = max(self._newest + 1, self._floor + 1, min(self._positions.values(), default=0))
        return min(oldest, SECOND - 1)

    def has_room(self, round_id: int, nbytes: int) -> bool:
        """Whether so many bytes of a round may come in. Those of the oldest always may: only it can free memory."""
        if self.held + nbytes <= self._memory:
            return True
        oldest = self.oldest_open
        return oldest is None or place(round_id) <= oldest

    def learn(self, description: control.Describe) -> None:
        """Build the codec that frames of this family are of."""
        if description.family in self._codecs:
            return
        if len(self._codecs) >= MAX_FAMILIES:
            raise ConfigError(f"a job may use {MAX_FAMILIES} codecs; this is one more: use fewer kinds of options")
        workers = description.options.get("workers")
        if workers != self.rules.workers:  # before anything is built for them
            raise MismatchError(f"the codec is built for {workers} workers, the job has {self.rules.workers}")
        codec = build(description)
        self._codecs[codec.family] = codec

    def _open(self, received: Frame, now: float) -> Round | None:
        """Begin a round, if this frame can and there is room."""
        codec, round_id = self._codecs[received.family], received.round_id
        # Other payloads need terms first, and the size that they claim is backed by nothing.
        if received.kind is not Kind.TERMS and not isinstance(codec, Sparse):
            return None
        if self.open_rounds >= MAX_OPEN or not self.has_room(round_id, received.length):
            return None
        spans = frozenset(spans_of(codec, received.size, self._shard, self._shards))
        round_ = Round(self.rules, round_id, codec, received.size, spans, now, now, now)
        if isinstance(codec, Sparse):  # whose terms are empty: nothing to join
            round_.terms, round_.agreed = SparseTerms(codec, (received.size,)), b""
        self._rounds[round_id] = round_
        return round_

    def _fail(self, round_: Round, reason: str, missing: Iterable[int], now: float) -> list[Send]:
        if round_.failure is not None:
            return []
        round_.fail(control.Failed(round_.round_id, list(missing)[:1024], reason[: control.MAX_REASON], 0))
        self._book(round_)
        self._note_failed(round_, reason)
        assert round_.failure is not None
        return [to(round_.listening, round_.failure), *self._note_finished(round_, now)]

    def _note_failed(self, round_: Round, reason: str) -> None:
        self.failed += 1
        self.tally.failed(round_.round_id, reason)
        # A worker may have written the reason: it must not look like another line.
        plain = reason.encode("unicode_escape").decode()
        _log.warning("job %s: %s failed: %s", self._job, name(round_.round_id), plain)

    def _note_finished(self, round_: Round, now: float) -> list[Send]:
        if not round_.finished:
            return []
        if round_.failure is None:
            self.finished += 1
            self.tally.ended(now - round_.began)
            for part in round_.parts.values():
                self.tally.summed(len(part.arrived), round_.codec.headroom, part.spread)
                moved = len(part.arrived) + len(round_.listening)
                self.tally.fp32 += 4 * moved * coordinates(round_.codec, round_.size, part.lo, part.hi)
        self._newest = max(self._newest, place(round_.round_id))
        return self._raise_floor(self._newest - HISTORY, now)

    def _raise_floor(self, floor: int, now: float) -> list[Send]:
        """Rounds up to this one are over: nobody whom they wait for will come."""
        if floor <= self._floor:
            return []
        self._floor = floor
        old = [self._rounds.pop(r) for r in sorted(self._rounds) if place(r) <= floor]
        for round_ in old:
            self.held -= round_.counted
            round_.counted = 0
        for r in [r for r in self._early if place(r) <= floor]:
            del self._early[r]
        sends: list[Send] = []
        for round_ in old:
            if not round_.finished:
                failure = self._gone(round_.round_id)
                self._note_failed(round_, failure.reason)
                sends.append(to(round_.listening, failure))
        return sends

    def _over(self, rank: int, round_id: int) -> list[Send] | None:
        if place(round_id) > self._floor:
            return None
        self.late += 1
        self.tally.late(rank)
        return [to({rank}, self._gone(round_id))]

    def _gone(self, round_id: int) -> control.Failed:
        at = self.next_round
        return control.Failed(round_id, [], f"the round is over: the job is at round {at}", at)

    def _book(self, round_: Round) -> None:
        """Keep `held` right."""
        if self._rounds.get(round_.round_id) is round_:
            held = round_.held
            self.held += held - round_.counted
            round_.counted = held
