"""The experiment of slow links: what rows say of runs, and what is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from sumwire.errors import ConfigError
from sumwire.lab.comparison import Point, Run, find_task
from sumwire.lab.experiments import find, throughput
from sumwire.lab.experiments import links as module
from sumwire.lab.experiments.chart import panels
from sumwire.lab.experiments.links import METHODS, QUICK, measure, rows, scheme
from sumwire.lab.experiments.table import cells
from sumwire.lab.links import Host, Network
from sumwire.lab.methods import label, parse_methods
from sumwire.lab.workloads import TARGETS, TRAINED

PERCEPTRON = 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
"""Values of its gradient."""


def run(method: str, *accuracies: float, sent: float = 1000.0) -> Run:
    points = [Point(5 * k, 0.5 * k, 5 * k * sent, score, 1.0) for k, score in enumerate((0.1, *accuracies))]
    return Run(method, points, identical=True, codec_ms=1.5)


def test_rows_are_compared_with_fp32() -> None:
    wire = 4 * PERCEPTRON * 2 * 3 / 4
    runs = [run("fp32", 0.8, 0.92, 0.95, sent=wire), run("peer-qgz-4", 0.9, 0.94, sent=wire / 8)]
    base, peer = rows(runs, find_task("perceptron"), 0.9, workers=4)
    assert (base["method"], base["when"], base["seconds"], base["steps_to_target"]) == ("fp32", "1.0", 1.0, 10)
    assert (base["worse"], base["both_bits"]) == (0, pytest.approx(64))
    assert (peer["method"], peer["when"], peer["ms"], peer["codec_ms"]) == (
        "peer qgz-4",
        "0.5",
        pytest.approx(100),
        1.5,
    )
    assert (peer["worse"], peer["both_bits"]) == (pytest.approx(0.01), pytest.approx(8))


def test_who_does_not_arrive_or_diverges_has_no_time() -> None:
    task = replace(find_task("perceptron"), metric="loss")
    lost = run("peer-dgc-1%", 0.5)
    lost.points[-1] = replace(lost.points[-1], loss=float("nan"))
    base, slow, diverged = rows([run("fp32", 0.5), run("fp16", 0.6), lost], task, 0.9, workers=2)
    assert slow["when"] == "not reached"
    assert not {"seconds", "steps_to_target"} & set(slow)
    assert diverged["diverged"]
    assert not {"seconds", "score", "worse"} & set(diverged)
    assert "NaN" not in json.dumps([base, slow, diverged])


@contextmanager
def network(workers: int, rate: float | None) -> Iterator[Network]:
    yield Network((Host("10.0.0.1", "eth0", ("enter",)),) * workers, True, "links limited")


@pytest.mark.parametrize("seed", [0, 2])
def test_a_point_measures_its_methods_in_an_order_that_the_seed_turns(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def compare(network: Network, task: Any, methods: list[str], **options: Any) -> list[Run]:
        asked.append((task.name, methods, options))
        return [run(method, 0.8, 0.95, sent=1000.0 * (1 + place)) for place, method in enumerate(methods)]

    monkeypatch.setattr(module, "links", network)
    monkeypatch.setattr(module, "compare", compare)
    experiment = find("links")
    point = dict(experiment.quick[0]) | {"seed": seed}
    found = [point | row for row in json.loads(json.dumps(list(measure(point))))]
    quick = QUICK.split(",")
    assert asked == [("perceptron", [*quick[seed:], *quick[:seed]], {"seed": seed, "steps": 60})]
    assert [row["method"] for row in found] == [label(method) for method in quick]
    assert all(all(row) for row in cells(experiment, found))
    ((panel, curves),) = panels(experiment, found).items()
    assert panel == "where: perceptron, 100 Mbit/s, 4 workers"
    assert set(curves) == {scheme(method) for method in quick}


def test_without_shaped_links_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def refused(workers: int, rate: float | None) -> Iterator[Network]:
        host = Host("127.0.0.1", "lo", ())
        yield Network((host,) * workers, False, "links are unshaped: `tc` was not found; install the package iproute2")

    monkeypatch.setattr(module, "links", refused)
    with pytest.raises(ConfigError, match=r"links of 100 Mbit/s on this machine: .*`tc` was not found; install"):
        list(measure(find("links").quick[0]))


def test_points_cover_what_is_asked() -> None:
    """Every scheme on all links as steps' times and as simulated training; some of them also as real training."""
    full = find("links").full
    assert {(point["workload"], point["rate"], point["workers"]) for point in full} == {
        (workload, 1e8, 4) for workload in TARGETS
    }
    assert len({point["seed"] for point in full}) == 3
    timed = {(point["workload"], point["rate"], point["workers"]) for point in find("throughput").full}
    assert timed >= set(product(TRAINED, (1e8, 1e9, 5e9), (4, 8)))
    trained = {(point["workload"], point["workers"], point["seed"]) for point in find("training").full}
    assert trained == set(product(TRAINED, (4, 8), range(3)))
    assert parse_methods(",".join(METHODS), bits=4) == METHODS
    assert METHODS[0] == "fp32"
    assert set(QUICK.split(",")) <= set(METHODS) <= set(throughput.METHODS)
    peers = {
        "powersgd-1",
        "powersgd-2",
        "powersgd-4",
        "peer-topk-10%",
        "peer-dgc-1%",
        "peer-terngrad",
        "peer-qsgd-4-owner",
    }
    peers |= {f"peer-{name}" for name in ("ef-sign-double", "fp8-rows", "qgz-4", "loco-4-4", "sdp4bit-4", "mxfp4")}
    assert {"bf16", "fp16", "sumwire-4", "peer-mxfp6", "peer-dynamiq-any-5", *peers} <= set(throughput.METHODS)
