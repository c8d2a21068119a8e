"""Which number a worker's next round has, and how far back its oldest one is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from sumwire.aggregate.protocol import HISTORY, place
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.codec.options import whole_number
from sumwire.errors import ConfigError

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


def remember(memory: dict[int, T], round_id: int, value: T) -> None:
    """Keep what was of the last few rounds."""
    memory[round_id] = value
    known = {place(r) for r in memory}
    if len(known) > HISTORY:
        for r in [r for r in memory if place(r) == min(known)]:
            del memory[r]
