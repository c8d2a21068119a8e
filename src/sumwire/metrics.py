"""All Prometheus metrics. This module does not need prometheus-client.

No metric has a label for workers: the number of series would grow with the job. The live page and `/stats` show single
workers. The label of Sumwire's jobs is `job_name`, because Prometheus reserves `job`.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of histogram buckets."""


@dataclass(frozen=True)
class Metric:
    """Name, meaning and labels of a metric."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    help: str
    labels: tuple[str, ...] = ("job_name", "shard")

    def series(self) -> tuple[str, ...]:
        """The names of its series in queries.

        >>> ROUND_DURATION.series()[0]
        'sumwire_round_duration_seconds_bucket'
        """
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


ROUNDS = Metric("sumwire_rounds_total", "counter", "Rounds that finished or failed.", ("job_name", "shard", "outcome"))
ROUNDS_OPEN = Metric("sumwire_rounds_open", "gauge", "Rounds in progress.")
ROUND_DURATION = Metric(
    "sumwire_round_duration_seconds", "histogram", "Time from the first frame of a round to its complete sum."
)
ARRIVAL_SPREAD = Metric(
    "sumwire_arrival_spread_seconds",
    "histogram",
    "Time from the first to the last terms joined, or payload added, in a round.",
    ("job_name", "shard", "merge"),
)
WIRE_BYTES = Metric(
    "sumwire_wire_bytes_total",
    "counter",
    "Bytes received from workers and sent to them.",
    ("job_name", "shard", "direction"),
)
FP32_BYTES = Metric(
    "sumwire_fp32_bytes_total", "counter", "Bytes that the same payloads and sums would have at 4 bytes per value."
)
DUPLICATES = Metric("sumwire_duplicate_frames_total", "counter", "Duplicate frames, which were not added again.")
LATE = Metric("sumwire_late_frames_total", "counter", "Frames that arrived after their join, sum or round had ended.")
HELD = Metric("sumwire_held_bytes", "gauge", "Memory held by the rounds of a job.")
MEMORY = Metric("sumwire_memory_limit_bytes", "gauge", "Memory limit beyond which workers have to wait.", ("shard",))
CONNECTED = Metric("sumwire_workers_connected", "gauge", "Connected workers.")
WORKERS = Metric("sumwire_workers", "gauge", "Workers per job.", ())
QUORUM = Metric("sumwire_quorum", "gauge", "Workers that a round waits for.", ())
HEADROOM = Metric("sumwire_headroom_payloads", "gauge", "Payloads that a lane of the fullest sum can hold.")
FULLEST_SUM = Metric("sumwire_fullest_sum_payloads", "gauge", "Payloads in the fullest sum so far.")
NMSE = Metric("sumwire_nmse", "gauge", "Mean of the normalized squared errors that workers reported recently.")
SHARD_UP = Metric("sumwire_shard_up", "gauge", "1 if the shard has reported within the last seconds.", ("shard",))
REFUSED = Metric(
    "sumwire_refused_packets_total",
    "counter",
    "Packets that passed an in-network aggregator untouched.",
    ("shard", "reason"),
)
BUILD = Metric("sumwire_build_info", "gauge", "Always 1; the label is the release.", ("version",))

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
    REFUSED,
    BUILD,
)
