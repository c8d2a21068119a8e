"""Times of steps, from real ranks behind slow links: what rows say, not how long anything takes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sumwire.errors import ConfigError
from sumwire.lab.experiments import find
from sumwire.lab.experiments.base import Experiment
from sumwire.lab.experiments.chart import panels
from sumwire.lab.experiments.schemes import SCHEMES
from sumwire.lab.experiments.table import cells
from sumwire.lab.experiments.throughput import RATES, both_bits
from sumwire.lab.experiments.time_to_target import calculate
from sumwire.lab.links import Network, links
from sumwire.lab.step_times import INTERVALS, StepTime, step_times
from sumwire.lab.workloads import TRACES, TRAINED
from tests.lab.experiments.test_links import PERCEPTRON

METHODS = ("fp32", "bf16", "sumwire-4", "peer-qgz-4")
POINT: dict[str, Any] = {
    "workload": "perceptron", "rate": 1e9, "workers": 2, "steps": 2, "seed": 0, "methods": ",".join(METHODS),
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Of a point that is really measured, by two ranks."""
    with links(2, 1e9) as network:
        if not network.shaped:
            pytest.skip(network.note)
    found = json.loads(json.dumps(list(find("throughput").measure(POINT))))
    return [POINT | row for row in found]


def test_every_method_has_a_row_that_fills_table_and_chart(rows: list[dict[str, Any]]) -> None:
    experiment = find("throughput")
    assert [row["method"] for row in rows] == list(METHODS)
    assert [row["scheme"] for row in rows] == ["fp32", "bf16 hook", "Sumwire", "peer qgz-4"]
    assert all(all(row) for row in cells(experiment, rows))
    ((panel, curves),) = panels(experiment, rows).items()
    assert panel == "links: 1 Gbit/s, 2 workers"
    assert {row["where"] for row in rows} == {"perceptron, 1 Gbit/s, 2 workers"}
    assert set(curves) == {row["scheme"] for row in rows}


def test_bits_are_those_that_travel_headers_included(rows: list[dict[str, Any]]) -> None:
    bits = {row["method"]: row["both_bits"] for row in rows}
    assert 64 < bits["fp32"] < 1.5 * 64
    assert 32 < bits["bf16"] < 1.5 * 32
    assert 8 < bits["sumwire-4"] < 16
    assert 8 < bits["peer-qgz-4"] < 16
    for row in rows:
        assert row["values"] == PERCEPTRON
        assert row["both_bits"] == pytest.approx(8 * 1e3 * row["kb"] * 2 / PERCEPTRON)


def test_times_are_compared_with_fp32(rows: list[dict[str, Any]]) -> None:
    base = rows[0]
    assert base["over_fp32"] == 1
    for row in rows:
        assert 0 < row["ms_lowest"] <= row["ms"] <= row["ms_highest"]
        assert row["over_fp32"] == pytest.approx(base["ms"] / row["ms"])
        # Torch's hooks do not say what they spend.
        assert (row["codec_ms"] > 0) == (row["method"] in ("sumwire-4", "peer-qgz-4"))


def test_steps_of_trainings_take_the_times_of_their_methods(rows: list[dict[str, Any]]) -> None:
    point = {"workload": "perceptron", "workers": 2, "seed": 0}
    training = [
        {"point": point, "method": scheme.label, "scheme": scheme.label, "over_links": scheme.over_links}
        | {"scores": [(5, 0.1), (10, 0.2)], "total_bits": 64}
        | point
        for scheme in SCHEMES
    ]
    found = list(calculate({"training": training, "throughput": rows}))
    assert [row["method"] for row in found] == ["fp32", "Sumwire, 4 bits up", "bf16", "qgz-4"]
    ms = {row["method"]: row["ms"] for row in rows}
    assert [row["ms"] for row in found] == [ms[method] for method in ("fp32", "sumwire-4", "bf16", "peer-qgz-4")]


def test_without_shaped_links_the_reason_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "unshare"
    fake.write_text("#!/bin/sh\necho 'Operation not permitted' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match=r"cannot measure over links of 1 Gbit/s on this machine: .*not permitted"):
        list(find("throughput").measure(POINT))


@pytest.fixture(scope="module")
def unshaped() -> Iterator[Network]:
    with links(2, None) as network:
        yield network


def test_over_unshaped_links_bytes_are_calculated(unshaped: Network) -> None:
    found = step_times(unshaped, "perceptron", ["fp32", "fp16", "sumwire-4"], steps=1, seed=3)
    assert [type(each) for each in found] == [StepTime] * 3
    assert all(len(each.seconds) == INTERVALS and min(each.seconds) > 0 for each in found)
    fp32, fp16, ours = (both_bits(each.sent, 2, each.values) for each in found)
    assert (fp32, fp16) == (64, 32)
    assert 8 < ours < 16
    (compute,) = {each.compute for each in found}  # measured once for all methods
    assert compute > 0


@pytest.mark.parametrize(
    ("workload", "method", "steps", "said"),
    [
        ("missing", "fp32", 1, "no workload 'missing'"),
        ("perceptron", "missing", 1, "no method 'missing'"),
        ("perceptron", "fp32", 0, "steps"),
        ("perceptron", "switch-4", 1, "there is no switch in it"),
    ],
)
def test_mistakes_are_named_before_ranks_start(
    workload: str, method: str, steps: int, said: str, unshaped: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("sumwire.lab.step_times.launch")
    with pytest.raises(ConfigError, match=said):
        step_times(unshaped, workload, [method], steps=steps)


def test_the_median_of_intervals_counts() -> None:
    assert StepTime("fp32", (9.0, 1.0, 2.0, 4.0), 0.0, 0.0, 1, 0.5).median == 3


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_ring_of_fp32_has_64_bits_for_any_number_of_workers(workers: int) -> None:
    assert both_bits(2 * 4 * 1000 * (workers - 1) / workers, workers, 1000) == pytest.approx(64)


def test_every_training_is_timed_at_every_rate_and_so_are_large_tensors() -> None:
    experiment = find("throughput")
    assert experiment.timed
    trained = {(point["workload"], point["workers"]) for point in find("training").full}
    for rate in RATES:
        timed = {(p["workload"], p["workers"]) for p in experiment.full if p["rate"] == rate} - large(experiment)
        assert {workload for workload, _ in timed} == set(TRAINED)
        assert timed <= trained
    assert {workload for workload, _ in large(experiment)} == set(TRACES)


def large(experiment: Experiment) -> set[tuple[Any, Any]]:
    return {(point["workload"], point["workers"]) for point in experiment.full if point["workload"] in TRACES}
