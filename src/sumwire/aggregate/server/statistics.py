"""What a job's rounds were like at one shard: counts and times, in memory that does not grow with rounds."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

from sumwire.aggregate.protocol import name
from sumwire.metrics import SECONDS

RECENT = 256
"""Rounds of which a report gives percentiles."""
WINDOW = 32
"""Arrivals in a worker's window: its mean and maximum are of this one and the one before."""
SHOWN = 64
"""Workers that a report names, the slowest first."""
MAX_REASON = 200


class Histogram:
    """Seconds, by the buckets of `metrics`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def report(self) -> dict[str, Any]:
        """Counts of each bucket alone, the last without an upper end."""
        return {"counts": list(self._counts), "sum": self._sum}


class Delays:
    """How long after the first worker's terms or payload one worker's came."""

    __slots__ = ("_before", "_now")

    def __init__(self) -> None:
        self._before = self._now = (0, 0.0, 0.0)

    def add(self, delay: float) -> None:
        count, total, most = self._now
        if count == WINDOW:
            self._before, (count, total, most) = self._now, (0, 0.0, 0.0)
        self._now = (count + 1, total + delay, max(most, delay))

    @property
    def mean(self) -> float:
        return (self._before[1] + self._now[1]) / ((self._before[0] + self._now[0]) or 1)

    @property
    def most(self) -> float:
        return max(self._before[2], self._now[2])


class Worker:
    """What the others of a round know of one: how they wait for it."""

    __slots__ = ("add", "join", "late")

    def __init__(self) -> None:
        self.join, self.add = Delays(), Delays()
        self.late = 0

    @property
    def slowness(self) -> tuple[int, float]:
        return self.late, self.join.mean + self.add.mean


class JobStatistics:
    """Is told what happens in a job's rounds.

    >>> statistics = JobStatistics()
    >>> for rank, delay in ((0, 0.0), (1, 0.5)):
    ...     statistics.arrived(rank, delay)
    >>> [(worker["rank"], worker["add"]) for worker in statistics.report()["workers"]]
    [(1, 0.5), (0, 0.0)]
    """

    def __init__(self) -> None:
        self.fp32 = 0
        """Bytes that would have moved at four per value."""
        self._durations, self._join, self._add = Histogram(), Histogram(), Histogram()
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._errors: deque[float] = deque(maxlen=RECENT)
        self._workers: dict[int, Worker] = {}
        self._headroom, self._largest = 0, 0
        self._failure = ""

    def proposed(self, rank: int, delay: float) -> None:
        """Terms came, `delay` seconds after the first of their round."""
        self._of(rank).join.add(delay)

    def joined(self, spread: float) -> None:
        """A round's terms are fixed, `spread` seconds after its first ones came."""
        self._join.add(spread)

    def arrived(self, rank: int, delay: float) -> None:
        """A payload came, `delay` seconds after the first of its part."""
        self._of(rank).add.add(delay)

    def late(self, rank: int) -> None:
        """Something of a part or round that was over."""
        self._of(rank).late += 1

    def summed(self, count: int, headroom: int, spread: float) -> None:
        """A part's sum of `count` payloads is complete; of none, if it was made before this aggregator began."""
        if not count:
            return
        self._add.add(spread)
        if not self._headroom or headroom - count < self._headroom - self._largest:
            self._headroom, self._largest = headroom, count

    def ended(self, duration: float) -> None:
        """A round has its result."""
        self._durations.add(duration)
        self._recent.append(duration)

    def failed(self, round_id: int, reason: str) -> None:
        """A round will have none."""
        self._failure = f"{name(round_id)}: {reason}"[:MAX_REASON]

    def measured(self, nmse: float) -> None:
        """A worker knows the error of what it sent or got."""
        self._errors.append(nmse)

    def report(self) -> dict[str, Any]:
        """Everything, in plain numbers; of workers, the slowest."""
        slowest = heapq.nlargest(SHOWN, self._workers.items(), key=lambda item: item[1].slowness)
        return {
            "fp32": self.fp32,
            "duration": self._durations.report() | percentiles(self._recent),
            "spread": {"join": self._join.report(), "add": self._add.report()},
            "headroom": self._headroom,
            "largest": self._largest,
            "failure": self._failure,
            "nmse": sum(self._errors) / len(self._errors) if self._errors else None,
            "workers": [
                {
                    "rank": rank,
                    "join": round(worker.join.mean, 6),
                    "join_max": round(worker.join.most, 6),
                    "add": round(worker.add.mean, 6),
                    "add_max": round(worker.add.most, 6),
                    "late": worker.late,
                }
                for rank, worker in slowest
            ],
        }

    def _of(self, rank: int) -> Worker:
        found = self._workers.get(rank)
        if found is None:
            found = self._workers[rank] = Worker()
        return found


def percentiles(recent: Sequence[float] | deque[float]) -> dict[str, float | None]:
    """Of the last rounds; none, if there were none.

    >>> percentiles([0.3, 0.1, 0.2])
    {'p50': 0.2, 'p99': 0.3}
    """
    ordered = sorted(recent)
    last = len(ordered) - 1
    return {name: ordered[-(-last * per // 100)] if ordered else None for name, per in (("p50", 50), ("p99", 99))}
