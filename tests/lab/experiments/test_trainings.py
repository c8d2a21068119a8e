"""Experiments that train: every one measures what its table and its chart show, on tiny runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sumwire.lab.experiments import find
from sumwire.lab.experiments.chart import panels
from sumwire.lab.experiments.table import cells
from sumwire.lab.experiments.trainings import STEPS, peer, rows, training
from sumwire.lab.workloads import TRAINED
from tests.lab.simulate.test_train import Failing

TINY = {
    "training": {"steps": 1},
    "ablation": {"steps": 1},
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


def test_steps_are_known_for_every_workload_that_is_trained() -> None:
    assert set(TRAINED) <= set(STEPS)
    for name in TINY:
        assert {str(point["workload"]) for point in find(name).full} <= set(STEPS)
