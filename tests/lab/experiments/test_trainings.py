"""Experiments that train: every one measures what its table and its chart show, on tiny runs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sumwire.lab.experiments import find
from sumwire.lab.experiments.bits_training import CLAMPED, GRANULARITIES
from sumwire.lab.experiments.chart import panels
from sumwire.lab.experiments.hops_training import Recompressed, server
from sumwire.lab.experiments.schemes import BASE, SCHEMES
from sumwire.lab.experiments.table import cells
from sumwire.lab.experiments.training import APART
from sumwire.lab.experiments.trainings import STEPS, peer, rows, training
from sumwire.lab.workloads import TRAINED
from sumwire.lab.workloads import find as find_workload
from tests.lab.simulate.test_train import Failing

TINY = {
    "training": {"steps": 1},
    "bits_training": {"steps": 1},
    "ablation": {"steps": 1},
    "scale_training": {"steps": 1},
    "hops_training": {"steps": 2},
    "loss": {"steps": 1},
    "stragglers": {"steps": 1},
    "drift": {"steps": 10},
}


@pytest.mark.parametrize("name", TINY)
def test_every_row_has_what_table_and_chart_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.lab.experiments.loss.RATES", (0.0, 0.05))
    monkeypatch.setattr("sumwire.lab.experiments.stragglers.LATE", (0, 3))
    experiment = find(name)
    point = dict(experiment.quick[0]) | TINY[name]
    found = [point | row for row in json.loads(json.dumps(list(experiment.measure(point))))]
    assert len(found) > 1
    assert all(all(row) for row in cells(experiment, found))
    shown = panels(experiment, found)
    assert sum(len(curve) for curves in shown.values() for curve in curves.values()) > 1
    drawn = [(line[experiment.chart.series], line[experiment.chart.x], line.get("quantity")) for line in found]
    assert len(set(drawn)) == len(drawn)


def test_rows_are_compared_with_the_first_and_lack_a_score_after_divergence() -> None:
    point: dict[str, Any] = {"workload": "perceptron", "workers": 2, "seed": 0, "steps": 1}
    first, other = rows(training(point), {"fp32": peer("fp32", point), "failing": lambda size: Failing()})
    assert (first["worse"], first["diverged"], first["metric"]) == (0, False, "accuracy")
    assert other["diverged"]
    assert not {"score", "worse", "nmse"} & set(other)
    json.loads(json.dumps(other["diverged"]))


def test_schemes_with_points_of_their_own_are_compared_with_fp32_too() -> None:
    experiment = find("training")
    point: dict[str, Any] = {"workload": "perceptron", "workers": 2, "seed": 0, "steps": 3}
    most = {row["method"]: row for row in experiment.measure(point)}
    rest = {row["method"]: row for row in experiment.measure(point | {"schemes": ",".join(APART)})}
    assert (len(most), tuple(rest)) == (len(SCHEMES) - len(APART), APART)
    assert not set(most) & set(rest)
    for row in rest.values():
        assert row["worse"] == pytest.approx(most[BASE]["score"] - row["score"], abs=1e-12)
    schemes = [point.get("schemes") for point in experiment.full]
    assert schemes.count(None) == schemes.count(",".join(APART)) == len(schemes) / 2


def test_steps_are_known_for_every_workload_that_is_trained() -> None:
    assert set(TRAINED) <= set(STEPS)
    for name in TINY:
        assert {str(point["workload"]) for point in find(name).full} <= set(STEPS)


def test_a_point_may_give_steps_samples_and_metric() -> None:
    point: dict[str, Any] = {"workload": "perceptron", "workers": 2, "seed": 0}
    given = training(point | {"steps": 3, "batch": 5, "metric": "loss"})
    assert (given.steps, given.workload.batch, given.workload.metric, given.workload.sign) == (3, 5, "loss", -1)
    assert training(point).workload == find_workload("perceptron")


def test_no_more_workers_are_asked_for_than_there_are_samples() -> None:
    for name in ("scale_training", "hops_training"):
        largest = {point["workload"]: point for point in sorted(find(name).full, key=lambda point: point["workers"])}
        for point in largest.values():
            run = training(point)
            assert run.workers * run.workload.batch <= len(run.data.inputs)


def test_recompression_on_the_way_is_noisier_than_adding_and_draws_anew_in_every_round() -> None:
    experiment = find("hops_training")
    found = [row["nmse"] for row in experiment.measure(dict(experiment.quick[1]) | {"steps": 3})]
    exact, added, narrowed, at_server, along_ring = found
    assert exact < added < narrowed < at_server < along_ring
    xs = [np.linspace(-1, 1, 1024, dtype=np.float32)] * 2
    method = Recompressed(server, seed=0)
    first, second = method.average(xs), method.average(xs)
    assert not np.array_equal(first.means[0], second.means[0])
    assert (first.up_bits, first.down_bits) == (second.up_bits, second.up_bits)
    assert 4 < first.up_bits < 4.1


def test_the_sweep_in_training_has_the_solvers_choice_first() -> None:
    experiment = find("bits_training")
    point = dict(experiment.quick[0]) | {"steps": 1}
    first, *others = experiment.measure(point)
    assert first["choice"] == "solver"
    assert len(others) == len(GRANULARITIES[int(point["bits"])]) * len(CLAMPED)
