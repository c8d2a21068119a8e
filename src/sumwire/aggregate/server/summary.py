"""One picture of all shards, in plain numbers: what `/stats` answers and the live page draws."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from sumwire.aggregate.server.service import Options
from sumwire.aggregate.server.statistics import SHOWN

SILENCE = 5.0
"""Seconds without a report, after which a shard counts as unhealthy."""

Report = dict[str, Any]


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
    """All jobs, each over all shards."""
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
