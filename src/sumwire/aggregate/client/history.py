"""A worker's rounds by number: which comes next, how far back the oldest is, and what is kept of the last ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from sumwire.aggregate.client.contribution import Pieces
from sumwire.aggregate.client.pending import Pending
from sumwire.aggregate.protocol import HISTORY, place
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.codec.options import whole_number
from sumwire.errors import ConfigError
from sumwire.wire import control

T = TypeVar("T")


class RoundNumbers:
    """Numbers of one link's rounds.

    >>> numbers = RoundNumbers()
    >>> numbers.take(), numbers.take(), numbers.oldest([])
    (0, 1, 0)
    >>> numbers.expected.discard(0)
    >>> numbers.take(7), numbers.upcoming, numbers.oldest([])
    (7, 8, 1)
    """

    def __init__(self) -> None:
        self.upcoming = 0
        """The round that the next `take` gives."""
        self.first = 0
        """The round with which this link began."""
        self.expected: set[int] = set()
        """Rounds that were given out, or wait to begin, and have not begun."""
        self._reached = 0
        """One after the highest round that was taken: where the server suggests to begin does not count."""

    def begin_at(self, first: int, at: Sequence[int]) -> None:
        """Begin where the shards are; at the job's first round, if they have had none.

        A shard may be behind, and others wait there for this worker; but it may also have no part of most tensors.
        Rounds that are finished already only give their results once more.
        """
        farthest = max(at) or first
        used = [round_id or first for round_id in at if round_id or farthest <= first + HISTORY]
        self.upcoming = max(min(used), farthest - HISTORY, 0)
        self.first = self.upcoming if any(at) else 0  # nobody waits for anything of a job that begins

    def take(self, round_id: int | None = None) -> int:
        """The round that is asked for, or the next one. It counts as in flight until it has ended."""
        number = self.upcoming if round_id is None else whole_number("round_id", round_id)
        if not 0 <= number < FOLLOW_UP:
            raise ConfigError(f"round_id={number} is not in 0..2**63-1, which a server counts by")
        self.upcoming = max(self.upcoming, number + 1)
        self._reached = max(self._reached, number + 1)
        self.expected.add(number)
        return number

    def move(self, upcoming: int, *, back: bool) -> None:
        """The job is at another round; `back`: this link may have begun where nobody else is."""
        self.upcoming = upcoming if back else max(self.upcoming, upcoming)

    def oldest(self, in_flight: Iterable[int]) -> int:
        """The oldest round in flight or expected, or one after all that were; 0 if there were none."""
        return min(map(place, (*in_flight, *self.expected)), default=self._reached)


class PastRounds:
    """What a worker keeps of its last rounds, for a server that was restarted and for workers that wait there."""

    def __init__(self) -> None:
        self.finished: dict[int, Pending] = {}
        self._given_up: dict[int, control.Abstain] = {}

    def finish(self, pending: Pending) -> None:
        """A round has its result."""
        _remember(self.finished, pending.round_id, pending)

    def give_up(self, message: control.Abstain) -> None:
        """This worker sends nothing more for a round."""
        _remember(self._given_up, message.round_id, message)

    def results(self, round_id: int, shard: int) -> list[Pieces]:
        """Terms and sums of a round that has finished."""
        old = self.finished[round_id]
        return [old.agreement, *old.results(shard)]

    def answer(self, shard: int, round_id: int, first: int, *, in_flight: bool) -> list[Pieces]:
        """What a shard must know where others wait for something of a round; `first` is where this link began."""
        if round_id in self.finished:
            return self.results(round_id, shard)
        if round_id in self._given_up and not in_flight:
            return [[control.to_bytes(self._given_up[round_id])]]
        if place(round_id) < first and not in_flight:
            return _excuse(round_id, f"it was restarted, and began with round {first}")
        if round_id & FOLLOW_UP and place(round_id) in self.finished:  # canceled, say, before it came to this
            return _excuse(round_id, "its round has ended without a second exchange")
        return []


def _excuse(round_id: int, reason: str) -> list[Pieces]:
    return [[control.to_bytes(control.Abstain(round_id, reason))]]


def _remember(memory: dict[int, T], round_id: int, value: T) -> None:
    """Keep what was of the last few rounds."""
    memory[round_id] = value
    known = {place(r) for r in memory}
    if len(known) > HISTORY:
        for r in [r for r in memory if place(r) == min(known)]:
            del memory[r]
