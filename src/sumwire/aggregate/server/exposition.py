"""The shards' reports as Prometheus metrics. The only file that needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from sumwire import metrics
from sumwire.aggregate.server.statistics import Watched, problems
from sumwire.metrics import SECONDS, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FAMILIES: dict[str, type[Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Page(Collector):
    """All metrics of a server, as of now."""

    def __init__(self, server: Watched, version: str) -> None:
        self._server, self._version = server, version
        self._families: dict[str, Any] = {}

    def collect(self) -> Iterator[PrometheusMetric]:
        self._families = {m.name: _FAMILIES[m.kind](m.name, m.help, labels=m.labels) for m in metrics.ALL}
        rules = self._server.options.rules
        self._put(metrics.BUILD, 1, self._version)
        self._put(metrics.WORKERS, rules.workers)
        self._put(metrics.QUORUM, rules.needed)
        wrong = problems(self._server)
        for shard in range(self._server.options.shards):
            self._put(metrics.SHARD_UP, shard not in wrong, str(shard))
            self._put(metrics.MEMORY, self._server.options.memory, str(shard))
        for shard, report in dict(self._server.reports).items():
            for reason, count in report.get("refused", {}).items():
                self._put(metrics.REFUSED, count, str(shard), reason)
            for name, job in report["jobs"].items():
                # A job's name is whatever its workers say, and need not be text that can be sent.
                self._job(job, name.encode("utf-8", "backslashreplace").decode(), str(shard))
        yield from self._families.values()

    def _job(self, job: dict[str, Any], *at: str) -> None:
        self._put(metrics.ROUNDS, job["finished"], *at, "finished")
        self._put(metrics.ROUNDS, job["failed"], *at, "failed")
        self._put(metrics.WIRE_BYTES, job["bytes_in"], *at, "in")
        self._put(metrics.WIRE_BYTES, job["bytes_out"], *at, "out")
        self._put(metrics.FP32_BYTES, job["fp32"], *at)
        self._put(metrics.ROUNDS_OPEN, job["open"], *at)
        self._put(metrics.DUPLICATES, job["duplicates"], *at)
        self._put(metrics.LATE, job["late"], *at)
        self._put(metrics.HELD, job["held"], *at)
        self._put(metrics.CONNECTED, len(job["connected"]), *at)
        self._histogram(metrics.ROUND_DURATION, job["duration"], *at)
        for merge, spread in job["spread"].items():
            self._histogram(metrics.ARRIVAL_SPREAD, spread, *at, merge)
        if job["headroom"]:
            self._put(metrics.HEADROOM, job["headroom"], *at)
            self._put(metrics.FULLEST_SUM, job["largest"], *at)
        if job["nmse"] is not None:
            self._put(metrics.NMSE, job["nmse"], *at)

    def _put(self, metric: Metric, value: float, *labels: str) -> None:
        self._families[metric.name].add_metric(labels, value)

    def _histogram(self, metric: Metric, report: dict[str, Any], *labels: str) -> None:
        ends: Iterable[str] = [*map(str, SECONDS), "+Inf"]
        buckets = list(zip(ends, map(float, accumulate(report["counts"])), strict=True))
        self._families[metric.name].add_metric(labels, buckets, sum_value=report["sum"])


def expose(server: Watched, version: str) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry()
    registry.register(Page(server, version))
    return generate_latest(registry)
