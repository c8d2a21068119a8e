"""Recording trains a model and keeps what gradients of its workers look like."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from sumwire.errors import ConfigError
from sumwire.lab.gradients import worker_gradients
from sumwire.lab.workloads import record_trace, recorded
from sumwire.lab.workloads.base import Data
from sumwire.lab.workloads.pretrain import Pretraining
from sumwire.lab.workloads.record_trace import main, record_workload
from sumwire.lab.workloads.recorded import RUN, load


@dataclass(frozen=True, kw_only=True)
class Small(Pretraining):
    """Two layers that learn the sign of a sum."""

    name: str = "small"
    description: str = "a perceptron"
    batch: int = 4
    steps: int = 5
    metric: str = "loss"

    @property
    def source(self) -> str:
        return "sums"

    def load(self, seed: int) -> Data:
        samples = torch.randn(200, 20, generator=torch.Generator().manual_seed(seed))
        samples[:, 15:] = 0
        targets = (samples.sum(1) > 0).long()
        return Data(samples, targets, samples[:8], targets[:8])

    def model(self, data: Data) -> nn.Module:
        return nn.Sequential(nn.Linear(20, 90), nn.ReLU(), nn.Linear(90, 2))

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.5)

    def score(self, model: nn.Module, data: Data) -> float:
        return 0.0


SIZES = (1800, 90, 180, 2)


def test_what_is_recorded_is_what_workers_have() -> None:
    lines: list[str] = []
    found = record_workload(Small(), workers=3, seed=2, report=lines.append)
    flat = np.stack(worker_gradients(Small(), 3, seed=2)).astype(np.float64)
    squares = np.square(flat).mean(0)
    exact = np.sqrt([squares[start : start + RUN].mean() for start in range(0, sum(SIZES), RUN)])
    assert np.abs(np.log2(found.scales / exact)).max() <= 0.07
    ends = np.cumsum((0, *SIZES))
    for tensor, (start, end) in enumerate(pairwise(ends)):
        parts = flat[:, start:end]
        pairs = np.mean([one @ other for one, other in combinations(parts, 2)])
        assert found.correlations[tensor] == pytest.approx(pairs / np.mean(np.square(parts).sum(1)), abs=1e-4)
    assert lines[0].startswith("step 1 of 5: loss 0.")
    assert lines[5:] == ["gradients of 3 workers"]


def test_a_recording_says_what_was_trained() -> None:
    about: Any = record_workload(Small(), workers=2).about
    assert (about["model"], about["trained"], about["data"]) == ("small", "a perceptron", "sums")
    assert (about["steps"], about["batch"], about["workers"], about["seed"]) == (5, 4, 2, 0)
    assert len(about["losses"]) == 5
    assert about["losses"][0] == pytest.approx(0.7, abs=0.2)  # of two classes, before anything is learned
    assert set(about["versions"]) == {"sumwire", "python", "torch", "numpy"}
    again = record_workload(Small(), workers=2)
    assert again.about == about


def test_the_command_writes_and_shows_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(record_trace, "PRETRAINED", {"small": Small()})
    monkeypatch.setattr(recorded, "SHAPES", {"small": tuple((size,) for size in SIZES)})
    monkeypatch.setattr(recorded, "FOLDER", str(tmp_path / "new"))
    command = ["record_trace", "small", "--out", str(tmp_path / "new")]
    monkeypatch.setattr("sys.argv", [*command, "--steps", "2", "--batch", "8", "--seed", "1"])
    main()
    printed = capsys.readouterr().out
    assert "step 2 of 2: loss" in printed
    assert f"small.npz: {(tmp_path / 'new' / 'small.npz').stat().st_size:,} bytes" in printed
    found = load("small").about
    assert (found["steps"], found["batch"], found["seed"]) == (2, 8, 1)
    monkeypatch.setattr("sys.argv", [*command, "--show"])
    main()
    assert '"batch": 8' in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["record_trace", "other"])
    with pytest.raises(ConfigError, match="no published model 'other': choose from small"):
        main()
