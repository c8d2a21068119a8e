"""Rounds that were in flight when the server was restarted: sums that workers had are taken over from them."""

from __future__ import annotations

import logging

from sumwire.aggregate.protocol import HISTORY, name, place
from sumwire.aggregate.server.restart import MIN_SURVIVORS
from sumwire.aggregate.server.round import RecoveredSum, Round, Send
from sumwire.aggregate.server.round_table import RoundTable
from sumwire.wire import control
from sumwire.wire.frame import Frame

_log = logging.getLogger(__name__)


class RecoveringTable(RoundTable):
    """A table that workers help to fill again."""

    def greet(self, rank: int, position: int, now: float, known: str = "") -> list[Send]:
        """A worker is (back) here, and needs nothing of rounds before this one. `known` welcomed it before a restart.

        Rounds far behind are over when enough workers are beyond them to have made their sums: never by one's word.
        """
        self._restart.greet(rank, known, position)
        enough = min(max(MIN_SURVIVORS, self.rules.least), len(self.rules.members))
        sends = self._raise_floor(self._restart.passed_by(enough) - 1 - HISTORY, now)
        return sends + self._call_together(now)

    def _call_together(self, now: float) -> list[Send]:
        """After a restart, a new worker may have come first, and have begun where none of the others ever will be."""
        here, sends = self._restart.meeting_point(), []
        for round_ in [r for r in self._rounds.values() if not r.ended]:
            astray = here is not None and place(round_.round_id) >= here + HISTORY
            if here is not None and astray and not round_.taking_part & self._restart.positions.keys():
                sends += self._fail(round_, f"the job goes on at round {here}", [], now, next_round=here)
        return sends

    def expired(self, rank: int, message: control.Expired) -> list[Send]:
        """Who is missing from a sum that a worker is about to return."""
        round_ = self._rounds.get(message.round_id)
        missing = frozenset(control.read_ranks(message.ranks, self.rules.workers))
        if round_ is not None and round_.failure is None and (message.lo, message.hi) in round_.spans:
            round_.notes[message.lo, message.hi, rank] = missing
        return []

    def _recover(self, round_: Round, rank: int, received: Frame, now: float) -> list[Send]:
        if round_.agreed is None:
            return []
        part = round_.part(received.lo, received.hi)
        known = self._restart.concerns(place(round_.round_id)) and rank in self._restart.survivors()
        if part.result is not None or not known:
            return []  # without a restart that this aggregator knows of, no worker has a sum that is not here
        missing = round_.notes.get((part.lo, part.hi, rank), frozenset())
        found = round_.recovered.setdefault((part.lo, part.hi), RecoveredSum(received, missing))
        if not found.agrees(received, missing):
            others = ", ".join(map(str, sorted(found.ranks)))
            reason = f"worker {rank} returns another sum from before the restart than workers {others}"
            return self._fail(round_, reason, [], now)
        found.ranks.add(rank)
        if not found.ranks >= self._restart.past(place(round_.round_id)):
            return []  # others have it, too: they are asked for it
        del round_.recovered[part.lo, part.hi]
        total = found.frame.sum(round_.codec, round_.terms)
        listening, here = frozenset(round_.listening), place(round_.round_id)
        sends = [Send(listening, part.recover(total, set(missing)), here)]
        _log.warning(
            "job %s: %s: took over the sum of %d workers, part %d..%d, from before a restart, as workers %s have it",
            self._job, name(round_.round_id), total.count, part.lo, part.hi, sorted(found.ranks),
        )  # fmt: skip
        return sends + self._note_finished(round_, now)
