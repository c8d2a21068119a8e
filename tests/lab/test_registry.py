"""One registry for all that trains or takes gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sumwire.errors import ConfigError
from sumwire.lab.gradients import worker_gradients
from sumwire.lab.workloads import DENSE, SPARSE, TARGETS, TRACES, TRAINED, WORKLOADS, find
from sumwire.lab.workloads.data import UNSCORED, VOCAB
from sumwire.lab.workloads.shapes import SHAPES


def test_every_workload_has_a_use_and_its_own_name() -> None:
    assert {*DENSE, *SPARSE, *TARGETS, *TRACES, *TRAINED, "cnn", "perceptron"} == set(WORKLOADS)
    assert TARGETS == ("conv", "transformer")
    for name in TARGETS:
        assert find(name).check_target() == find(name).target
    with pytest.raises(ConfigError, match="'mlp' has no target of its own: give one"):
        find("mlp").check_target()
    with pytest.raises(ConfigError, match=f"no workload 'missing': choose from {', '.join(WORKLOADS)}"):
        find("missing")


@pytest.mark.parametrize("name", ["perceptron", "cnn-small", "vgg-small", "bert", "lstm-small"])
def test_a_seed_decides_gradients_of_what_experiments_train(name: str) -> None:
    first, again = (worker_gradients(name, 2, steps=1, batch=2, seed=1) for _ in range(2))
    other = worker_gradients(name, 1, steps=1, batch=2, seed=2)
    assert np.array_equal(first, again)
    assert np.isfinite(first).all()
    assert not np.array_equal(first[0], other[0])


def test_only_masked_bytes_are_predicted_and_scored() -> None:
    bert: Any = find("bert")
    data = bert.load(0)
    masked = data.inputs == VOCAB
    assert masked.float().mean().item() == pytest.approx(0.15, abs=0.01)
    assert torch.equal(masked, data.targets != UNSCORED)

    class Constant(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            scores = torch.zeros(*tokens.shape, VOCAB)
            scores[..., ord("e")] = 5
            return scores

    accuracy, _ = bert.scores(Constant(), data)
    scored = data.test_targets[data.test_targets != UNSCORED]
    assert accuracy == pytest.approx((scored == ord("e")).float().mean().item())


@pytest.mark.parametrize(
    ("model", "tensors", "values"),
    [("resnet-50", 161, 25_557_032), ("vgg-19", 38, 143_667_240), ("bert-base", 199, 109_482_240)],
)
def test_shapes_are_those_of_published_models(model: str, tensors: int, values: int) -> None:
    assert len(SHAPES[model]) == tensors
    assert sum(math.prod(shape) for shape in SHAPES[model]) == values
