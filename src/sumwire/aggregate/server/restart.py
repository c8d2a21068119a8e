"""What workers say of the time before a restart: where they are, and which sums they had from the server before.

One worker's word is not enough. A restart is known when two workers name the same server before this one: they are its
*survivors*. A sum is taken over only if all survivors that have it return the same bytes. All of it is about rounds
that were in flight then: once a later one is summed as usual, nothing from before counts any more.
"""

from __future__ import annotations

from sumwire.aggregate.protocol import HISTORY

MIN_SURVIVORS = 2
"""Workers that must agree on what was before; fewer only where a job has fewer."""


class Restart:
    """Which server the connected workers knew before, and how far they had come."""

    def __init__(self, workers: int) -> None:
        self._needed, self._workers = min(MIN_SURVIVORS, workers), workers
        self._settled = False
        self._known: dict[int, str] = {}
        self.positions: dict[int, int] = {}
        """Of connected workers that have begun: their oldest round in flight, or the next one."""

    def greet(self, rank: int, known: str, position: int) -> None:
        """A worker is here; `known` is the incarnation that welcomed it before, if that is not the present one."""
        self._known[rank] = known
        if position:
            self.positions[rank] = position
        else:
            self.positions.pop(rank, None)

    def leave(self, rank: int) -> None:
        self._known.pop(rank, None)
        self.positions.pop(rank, None)

    @property
    def connected(self) -> int:
        return len(self._known)

    @property
    def ranks(self) -> set[int]:
        """Of connected workers."""
        return set(self._known)

    def survivors(self) -> set[int]:
        """Workers that know a server before this one, if enough name the same, and as long as it matters."""
        if self._settled:
            return set()
        by_name: dict[str, set[int]] = {}
        for rank, known in self._known.items():
            if known:
                by_name.setdefault(known, set()).add(rank)
        most = max(by_name.values(), key=len, default=set())
        return most if len(most) >= self._needed else set()

    def past(self, place: int) -> set[int]:
        """Survivors that had finished this round when they came: they have its sum, or had it."""
        if not self.concerns(place):
            return set()
        return {rank for rank in self.survivors() if self.positions.get(rank, 0) > place}

    def concerns(self, place: int) -> bool:
        """Whether a round may have been in flight before the restart: no worker has more than a few at once."""
        return bool(self.survivors()) and place < self.passed_by(self._needed) + HISTORY

    def summed(self, place: int) -> None:
        """A round got its sum from payloads. If it is a new one, what was before is over."""
        if place >= self.passed_by(self._needed):
            self._settled = True

    def meeting_point(self) -> int | None:
        """Where workers are that were in the job before, if they are enough that new ones should come there."""
        enough = max(1, min(MIN_SURVIVORS, self._workers - 1))
        theirs = [self.positions[rank] for rank, known in self._known.items() if known and rank in self.positions]
        return min(theirs) if len(theirs) >= enough and not self._settled else None

    def knew_another(self, rank: int) -> bool:
        """Whether a worker says that another server welcomed it before."""
        return bool(self._known.get(rank))

    def passed_by(self, count: int) -> int:
        """The highest position that `count` connected workers have reached; 0 if there are fewer."""
        ordered = sorted(self.positions.values(), reverse=True)
        return ordered[count - 1] if len(ordered) >= count else 0
