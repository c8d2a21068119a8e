"""Prometheus names, the dashboard that uses them, and logs for machines."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sumwire
from sumwire import metrics
from sumwire.aggregate.server.options import Options, Rules
from sumwire.aggregate.server.process import JsonFormatter
from sumwire.aggregate.server.statistics import SHOWN, WINDOW, JobStatistics

DEPLOY = Path(__file__).parents[3] / "deploy"
SERVER_DOC = Path(__file__).parents[3] / "docs/server.md"


def watched(**jobs: dict[str, Any]) -> Any:
    """A server as the exposition sees it."""
    report = {"shard": 0, "seconds": 1.0, "jobs": jobs}
    return SimpleNamespace(
        options=Options(Rules(4, 3)), reports={0: report}, earlier={0: report}, heard={0: float("inf")}
    )


def job(statistics: JobStatistics) -> dict[str, Any]:
    counts = dict.fromkeys(("finished", "failed", "duplicates", "late", "open", "held", "bytes_in", "bytes_out"), 7)
    return {**counts, "connected": [0, 2], **statistics.report()}


def busy_tally() -> JobStatistics:
    statistics = JobStatistics()
    for rank, delay in enumerate((0.0, 0.004, 0.3)):
        statistics.proposed(rank, delay)
        statistics.arrived(rank, delay / 2)
    statistics.joined(0.3)
    statistics.summed(3, 4, 0.15)
    statistics.ended(0.6)
    statistics.measured(0.01)
    return statistics


def samples(server: Any) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from sumwire.aggregate.server.exposition import expose

    out: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(expose(server, "9.9").decode()):
        for sample in family.samples:
            out.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return out


def test_every_metric_is_exposed_under_its_name_and_labels() -> None:
    server = watched(default=job(busy_tally()))
    server.reports[0]["refused"] = {"foreign": 3}  # as a switch does
    found = samples(server)
    assert set(found) == {name for metric in metrics.ALL for name in metric.series()}
    for metric in metrics.ALL:
        for name in metric.series():
            for labels in found[name]:
                assert {key for key, _ in labels} - {"le"} == set(metric.labels), name


def test_names_follow_prometheus_conventions() -> None:
    names = [metric.name for metric in metrics.ALL]
    assert len(set(names)) == len(names)
    for metric in metrics.ALL:
        assert re.fullmatch(r"sumwire_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.kind != "histogram" or metric.name.endswith("_seconds")
        assert not {"rank", "worker"} & set(metric.labels)  # series must not grow with the job
        assert not {"job", "instance"} & set(metric.labels)  # which Prometheus gives to what it scrapes
    assert {"sumwire_wire_bytes_total", "sumwire_round_duration_seconds"} <= set(names)


def test_histogram_buckets_add_up() -> None:
    found = samples(watched(default=job(busy_tally())))
    duration = {dict(labels)["le"]: v for labels, v in found["sumwire_round_duration_seconds_bucket"].items()}
    assert (duration["0.5"], duration["1.0"], duration["+Inf"]) == (0, 1, 1)
    assert list(found["sumwire_round_duration_seconds_sum"].values()) == [0.6]


def test_what_was_not_seen_is_not_exposed() -> None:
    assert not {"sumwire_nmse", "sumwire_headroom_payloads"} & set(samples(watched(default=job(JobStatistics()))))


@pytest.mark.parametrize("name", ['a"b\\c\nd', "\ud800", "x" * 4096, ""])
def test_a_job_may_have_any_name(name: str) -> None:
    assert len(samples(watched(**{name: job(JobStatistics())}))["sumwire_held_bytes"]) == 1


def test_a_report_is_bounded() -> None:
    statistics = JobStatistics()
    for rank in range(5000):
        statistics.arrived(rank, rank * 1e-3)
        statistics.late(rank % 7)
    statistics.failed(1, "x" * 100_000)
    for _ in range(5000):
        statistics.ended(0.1)
        statistics.measured(0.1)
    report = statistics.report()
    assert len(json.dumps(report)) < 200 * SHOWN
    assert [worker["rank"] for worker in report["workers"][7:9]] == [4999, 4998]


def test_a_worker_that_became_fast_is_no_straggler_any_more() -> None:
    statistics = JobStatistics()
    statistics.arrived(0, 5.0)
    for _ in range(2 * WINDOW):
        statistics.arrived(0, 0.001)
    (worker,) = statistics.report()["workers"]
    assert worker["add_max"] == worker["add"] == 0.001


def test_the_dashboard_uses_only_metrics_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = [str(variable["query"]) for variable in dashboard["templating"]["list"]]
    readme = (DEPLOY / "README.md").read_text()
    used = {name for text in (*panels, *variables, readme) for name in re.findall(r"\bsumwire_\w+", text)}
    assert len(used) > 10
    assert used <= {name for metric in metrics.ALL for name in metric.series()}


def test_the_documentation_lists_every_metric() -> None:
    rows = re.findall(r"^\| `(sumwire_\w+)` \| (\w+) \| (.*) \| (.+) \|$", SERVER_DOC.read_text(), re.M)
    listed = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text + ".") for name, kind, labels, text in rows]
    assert listed == [(m.name, m.kind, m.labels, m.help) for m in metrics.ALL]


def test_a_log_line_for_machines_is_one_object(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("sumwire.x")
    log.warning("worker %d\nis late", 7)
    try:
        raise KeyError("gone")
    except KeyError:
        log.exception("bad")
    lines = [JsonFormatter(shard=3).format(record) for record in caplog.records]
    assert not any("\n" in line for line in lines)
    first, second = map(json.loads, lines)
    assert first["message"] == "worker 7\nis late"
    assert (first["level"], first["logger"], first["shard"]) == ("warning", "sumwire.x", 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    assert "KeyError: 'gone'" in second["exception"]


def test_an_unknown_log_format_is_refused() -> None:
    with pytest.raises(sumwire.ConfigError, match="text, json"):
        sumwire.Server(workers=1, log_format="xml")
    with pytest.raises(sumwire.ConfigError, match="log_level='loud' is not one of info, warning, error"):
        sumwire.Server(workers=1, log_level="loud")
