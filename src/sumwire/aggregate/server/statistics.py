"""What rounds were like: counted by each shard, in memory that does not grow with rounds; summed over all shards."""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sumwire.aggregate.protocol import name
from sumwire.aggregate.server.options import Options
from sumwire.metrics import SECONDS

RECENT = 256
"""Rounds of which a report gives percentiles."""
WINDOW = 32
"""Arrivals in a worker's window: its mean and maximum are of this one and the one before."""
SHOWN = 64
"""Workers that a report names, the slowest first."""
MAX_REASON = 200

SILENCE = 5.0
"""Seconds without a report, after which a shard counts as unhealthy."""
Report = dict[str, Any]


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


class Watched(Protocol):
    """What is shown: a `Server`."""

    options: Options
    reports: dict[int, Report]
    earlier: dict[int, Report]
    heard: dict[int, float]


def problems(server: Watched, now: float | None = None) -> dict[int, str]:
    """Which shards have not reported recently."""
    now = time.monotonic() if now is None else now
    out = {}
    for shard in range(server.options.shards):
        heard = server.heard.get(shard)
        if heard is None:
            out[shard] = f"shard {shard} has not reported yet"
        elif now - heard > SILENCE:
            out[shard] = f"shard {shard} has not reported for {now - heard:.0f} s"
    return out


def summary(server: Watched) -> dict[str, Any]:
    """All jobs, each over all shards: what `/stats` answers and the live page draws."""
    reports, earlier = dict(server.reports), dict(server.earlier)
    names = sorted({name for report in reports.values() for name in report["jobs"]})
    rules, wrong = server.options.rules, problems(server)
    return {
        "healthy": not wrong,
        "problems": list(wrong.values()),
        "seconds": max((report["seconds"] for report in reports.values()), default=0.0),
        "workers": rules.workers,
        "quorum": rules.needed,
        "deadline": rules.deadline,
        "shards": server.options.shards,
        "memory": server.options.memory * server.options.shards,
        "jobs": {name: _job(name, reports, earlier) for name in names},
    }


def _job(name: str, reports: Mapping[int, Report], earlier: Mapping[int, Report]) -> dict[str, Any]:
    mine = [report["jobs"][name] for report in reports.values() if name in report["jobs"]]

    def total(key: str) -> int:
        return sum(job[key] for job in mine)

    def most(values: Iterable[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    fullest = min(mine, key=lambda job: job["headroom"] - job["largest"] if job["headroom"] else float("inf"))
    bytes_in, bytes_out, fp32 = total("bytes_in"), total("bytes_out"), total("fp32")
    return {
        # A round is at every shard that has a part of it: it counts once.
        "finished": max(job["finished"] for job in mine),
        "failed": max(job["failed"] for job in mine),
        "open": max(job["open"] for job in mine),
        "duplicates": total("duplicates"),
        "late": total("late"),
        "held": total("held"),
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "fp32": fp32,
        "saved": fp32 - bytes_in - bytes_out,
        "connected": sorted(set.intersection(*(set(job["connected"]) for job in mine))),
        "p50": most(job["duration"]["p50"] for job in mine),
        "p99": most(job["duration"]["p99"] for job in mine),
        "headroom": fullest["headroom"],
        "largest": fullest["largest"],
        "nmse": most(job["nmse"] for job in mine),
        "failure": next((job["failure"] for job in mine if job["failure"]), ""),
        "workers": _workers(mine),
        "rates": _rates(name, reports, earlier),
    }


def _workers(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each worker, what the shard says that waits for it longest."""
    out: dict[int, dict[str, Any]] = {}
    for job in jobs:
        for worker in job["workers"]:
            known = out.setdefault(worker["rank"], worker)
            out[worker["rank"]] = {key: max(known[key], worker[key]) for key in worker}
    slowest = sorted(out.values(), key=lambda worker: (-worker["late"], -worker["join"] - worker["add"]))
    return slowest[:SHOWN]


def _rates(name: str, reports: Mapping[int, Report], earlier: Mapping[int, Report]) -> dict[str, float]:
    """Per second, between the last two reports of each shard: they need not be of the same time."""
    rates = {"rounds": 0.0, "failed": 0.0, "bytes_in": 0.0, "bytes_out": 0.0, "fp32": 0.0}
    for shard, report in reports.items():
        now, before = report["jobs"].get(name), earlier[shard]["jobs"].get(name)
        seconds = report["seconds"] - earlier[shard]["seconds"]
        if now is None or before is None or seconds <= 0:
            continue
        for key in ("bytes_in", "bytes_out", "fp32"):
            rates[key] += (now[key] - before[key]) / seconds
        rates["rounds"] = max(rates["rounds"], (now["finished"] - before["finished"]) / seconds)
        rates["failed"] = max(rates["failed"], (now["failed"] - before["failed"]) / seconds)
    return rates
