"""Every Prometheus name, once. Nothing here needs prometheus-client.

No metric is labelled with a worker: series would grow with the job. The live page and `/stats` name workers. Sumwire's
jobs are `job_name`, because Prometheus has a label `job` of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of a histogram's buckets."""


@dataclass(frozen=True)
class Metric:
    """A name, what it counts, and what tells its series apart."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    help: str
    labels: tuple[str, ...] = ("job_name", "shard")

    def series(self) -> tuple[str, ...]:
        """The names that queries use.

        >>> ROUND_DURATION.series()[0]
        'sumwire_round_duration_seconds_bucket'
        """
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


ROUNDS = Metric(
    "sumwire_rounds_total", "counter", "Rounds that ended, finished or failed.", ("job_name", "shard", "outcome")
)
ROUNDS_OPEN = Metric("sumwire_rounds_open", "gauge", "Rounds in flight.")
ROUND_DURATION = Metric(
    "sumwire_round_duration_seconds", "histogram", "From a round's first frame to its last part's sum."
)
ARRIVAL_SPREAD = Metric(
    "sumwire_arrival_spread_seconds",
    "histogram",
    "From the first to the last terms that were joined, and payload that was added.",
    ("job_name", "shard", "merge"),
)
WIRE_BYTES = Metric(
    "sumwire_wire_bytes_total",
    "counter",
    "Bytes received from workers and sent to them.",
    ("job_name", "shard", "direction"),
)
FP32_BYTES = Metric(
    "sumwire_fp32_bytes_total", "counter", "What the same payloads and sums would have been at 4 bytes per value."
)
DUPLICATES = Metric("sumwire_duplicate_frames_total", "counter", "Frames that had come before: not added again.")
LATE = Metric(
    "sumwire_late_frames_total", "counter", "Frames that came when their join, their sum or their round was over."
)
HELD = Metric("sumwire_held_bytes", "gauge", "Memory that a job's rounds have.")
MEMORY = Metric("sumwire_memory_limit_bytes", "gauge", "Memory beyond which workers are made to wait.", ("shard",))
CONNECTED = Metric("sumwire_workers_connected", "gauge", "Workers with a connection.")
WORKERS = Metric("sumwire_workers", "gauge", "Workers that every job has.", ())
QUORUM = Metric("sumwire_quorum", "gauge", "Workers that a round waits for.", ())
HEADROOM = Metric("sumwire_headroom_payloads", "gauge", "Payloads that a lane of the fullest sum can take.")
FULLEST_SUM = Metric("sumwire_fullest_sum_payloads", "gauge", "Payloads in the fullest sum so far.")
NMSE = Metric("sumwire_nmse", "gauge", "Normalized squared error that workers reported, mean of the last ones.")
SHARD_UP = Metric("sumwire_shard_up", "gauge", "1 if the shard has reported in the last seconds.", ("shard",))
BUILD = Metric("sumwire_build_info", "gauge", "1; its label is the release.", ("version",))

ALL = (
    ROUNDS,
    ROUNDS_OPEN,
    ROUND_DURATION,
    ARRIVAL_SPREAD,
    WIRE_BYTES,
    FP32_BYTES,
    DUPLICATES,
    LATE,
    HELD,
    MEMORY,
    CONNECTED,
    WORKERS,
    QUORUM,
    HEADROOM,
    FULLEST_SUM,
    NMSE,
    SHARD_UP,
    BUILD,
)
