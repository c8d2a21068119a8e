"""Sparse training, its bytes, and sketches: what tables and charts show, on tiny tensors. Times do not matter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sumwire.errors import ConfigError
from sumwire.kernels import backend
from sumwire.lab import lhc
from sumwire.lab.experiments import find
from sumwire.lab.experiments.base import Experiment, Point
from sumwire.lab.experiments.chart import panels
from sumwire.lab.experiments.sparse import CALCULATED
from sumwire.lab.experiments.table import cells
from sumwire.lab.links import links
from sumwire.lab.sparse_training import compare_steps
from sumwire.lab.workloads import find as find_workload


def measured(experiment: Experiment, point: Point) -> list[dict[str, Any]]:
    return [dict(point) | row for row in json.loads(json.dumps(list(experiment.measure(point))))]


def test_exact_peels_need_more_cells_than_the_threshold() -> None:
    if backend.name() != "native":
        pytest.skip("the reference peels the same, slowly")
    experiment = find("sketch")
    tiny = {"nonzeros": 5000, "trials": 4, "values": 1 << 18, "repeats": 1}
    found = measured(experiment, dict(experiment.quick[0]) | tiny)
    peeled = [row["peeled_percent"] for row in found]
    assert (peeled[0], peeled[-1]) == (0, 100)
    assert peeled == sorted(peeled)
    sizes = [row["bytes_percent"] for row in found]
    assert sizes == sorted(sizes)
    assert "decode_ms" not in found[0]
    assert found[-1]["decode_ms"] > 0
    assert all(row["encode_memcpy"] > 0 for row in found)
    assert all(cells(experiment, found)[-1])
    (curves,) = panels(experiment, found).values()
    assert len(curves["random"]) == len(found)


@pytest.mark.parametrize(
    "point",
    [
        {"source": "zipf", "density": 0.01, "workers": 4, "seed": 0},
        {"source": "lstm-small", "steps": 1, "density": 0, "workers": 3, "seed": 0},
    ],
)
def test_bytes_of_drawn_tensors_and_of_gradients(point: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.lab.experiments.sparse_bytes.SIZE", 1 << 16)
    experiment = find("sparse_bytes")
    found = measured(experiment, point)
    assert all(all(row) for row in cells(experiment, found))
    shares = {row["method"]: row["percent_of_dense"] for row in found}
    assert shares["Sparse"] <= shares["Sparse, padded"] < shares["paper's best"] < 100
    assert set(shares) == {
        "Sparse", "Sparse, padded", "paper's best", "compaction", "sketch, predicted", "sketch, joined",
    }  # fmt: skip
    assert 0 < found[0]["own_percent"] < found[0]["union_percent"] < 100
    assert shares["compaction"] == pytest.approx(100 / 32 + found[0]["union_percent"])


def test_steps_of_sparse_training_with_bytes_beside_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.lab.experiments.sparse.methods_of", lambda workload: ("fp32", "sumwire-sparse"))
    experiment = find("sparse")
    point = {"workload": "lstm-small", "steps": 2, "mbit": 1000, "ranks": 2, "seed": 0}
    found = measured(experiment, point)
    rows = {row["method"]: row for row in found}
    assert list(rows) == ["compute only", "fp32", "sumwire-sparse", CALCULATED]
    assert rows["fp32"]["speedup"] == 1
    assert rows["fp32"]["equal"] == rows["sumwire-sparse"]["equal"] == "yes"
    ours, paper = rows["sumwire-sparse"], rows[CALCULATED]
    assert "ms" not in paper
    union = ours["union_percent"] / 100
    size = round(1e6 * ours["dense_mb"] / lhc.dense_bytes(1, 2))
    assert paper["mb"] == pytest.approx(lhc.best_bytes(size, union * size, 2) / 1e6)
    if ours["links"] == "1000":
        assert rows["compute only"]["mb"] < ours["mb"] < paper["mb"] < rows["fp32"]["mb"]
    assert len(cells(experiment, found)) == len(found)
    (curves,) = panels(experiment, found).values()
    assert set(curves) == {"compute only", "fp32", "sumwire-sparse"}


def test_a_method_that_cannot_train_a_workload_is_refused() -> None:
    with (
        links(2, None) as network,
        pytest.raises(ConfigError, match="no method 'torch-sparse' for vgg: choose from fp32, fp16"),
    ):
        compare_steps(network, find_workload("vgg"), ["fp32", "torch-sparse"], 1)
