"""Counters of the kernel as reports of the shape that a server's shards have, so that one page shows both.

A chunk counts as a round, and the kernel takes no times: durations and delays are empty.
"""

from __future__ import annotations

from typing import Any

from sumwire.aggregate.network.aggregator import PacketAggregator
from sumwire.aggregate.protocol.control_plane import ControlPlane
from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.server.statistics import JobStatistics
from sumwire.aggregate.switch.data_plane import BpfDataPlane
from sumwire.aggregate.switch.records import SLOT, Counter


def title(job: JobOptions) -> str:
    """What a job is called where people read it."""
    return job.name or f"job {job.number}"


Plane = BpfDataPlane | PacketAggregator


def report(plane: Plane, control: ControlPlane, jobs: tuple[JobOptions, ...], seconds: float) -> dict[str, Any]:
    """Everything counted so far."""
    found = {title(job): _job(plane, control, job) for job in jobs}
    return {"seconds": seconds, "jobs": found, "refused": plane.refusals()}


def _job(plane: Plane, control: ControlPlane, job: JobOptions) -> dict[str, Any]:
    counters = plane.counters(job)
    total = {counter.name.lower(): int(counters[:, counter].sum()) for counter in Counter}
    return JobStatistics().report() | {
        "finished": total["completed"],
        "failed": total["mismatches"],
        "open": 0,
        "bytes_in": total["bytes_in"],
        "bytes_out": total["bytes_out"],
        # Every lane that went up comes down as well.
        "fp32": 2 * 4 * total["lanes"],
        "duplicates": total["duplicates"],
        "late": total["late"] + total["expiries"],
        "held": SLOT.itemsize * job.slots * job.channels,
        "connected": control.joined(job.number),
        "headroom": job.room,
        "largest": job.workers,
        "failure": "workers are out of step: see the mismatches of each" if total["mismatches"] else "",
        "workers": [
            {
                "rank": rank,
                "join": 0.0,
                "join_max": 0.0,
                "add": 0.0,
                "add_max": 0.0,
                "late": int(row[Counter.LATE] + row[Counter.EXPIRIES]),
            }
            | {counter.name.lower(): int(row[counter]) for counter in Counter if counter != Counter.LATE}
            for rank, row in enumerate(counters)
        ],
    }
