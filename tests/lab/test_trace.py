"""Models that are nothing but tensors: gradients come from recordings, and computing them changes nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sumwire.lab.comparison import own_batches
from sumwire.lab.methods import Place, wrap
from sumwire.lab.workloads import TRACES, find
from sumwire.lab.workloads.recorded import Recording, recorded_gradient
from sumwire.lab.workloads.shapes import SHAPES
from sumwire.lab.workloads.trace import SAMPLES, TraceModel
from tests.ranks import run

SMALL = {"resnet-50": ((4, 3, 2), (7,), (5, 2), ())}
SIZE = 24 + 7 + 10 + 1
RECORDING = Recording(np.array([150], np.uint8), np.array([0, 0.5, 0.2, 1], np.float32))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sumwire.lab.workloads.recorded.SHAPES", SMALL)
    patch.setattr("sumwire.lab.workloads.recorded.load", lambda model: RECORDING)
    patch.setattr("sumwire.lab.workloads.trace.SHAPES", SMALL)


def step(model: torch.nn.Module, *samples: int) -> NDArray[np.float32]:
    """The flat gradient of one step, which is then spoiled, as an optimizer or an exchange in place would."""
    model.zero_grad()
    chosen = torch.tensor(samples)
    find("trace-resnet-50").loss(model, chosen, chosen).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients]).numpy().copy()
    for gradient in gradients:
        gradient.fill_(math.nan)
    return flat


def test_a_model_has_the_tensors_of_the_published_one() -> None:
    model = TraceModel("resnet-50")
    assert [tuple(parameter.shape) for parameter in model.parameters()] == list(SMALL["resnet-50"])
    assert all(find(name).shapes in SHAPES for name in TRACES)  # type: ignore[attr-defined]


@pytest.mark.parametrize("sample", [0, 3, SAMPLES - 1])
def test_gradients_are_those_of_the_samples_number(sample: int) -> None:
    assert np.array_equal(step(TraceModel("resnet-50"), sample), recorded_gradient("resnet-50", sample))


def test_gradients_stay_the_same_whatever_the_next_sample_and_whoever_overwrites_them() -> None:
    model = TraceModel("resnet-50")
    first = step(model, 3)
    assert np.array_equal(step(model, 3), first)
    assert np.array_equal(step(model, 5), first)
    assert not np.array_equal(step(TraceModel("resnet-50"), 5), first)


def test_nothing_is_learned_but_parameters_move() -> None:
    task = find("trace-resnet-50")
    data = task.load(0)
    model = task.model(data)
    optimizer = task.optimizer(model)
    score = task.score(model, data)
    loss = task.loss(model, data.inputs[:1], data.targets[:1])
    loss.backward()
    optimizer.step()
    moved = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    assert loss.item() == 0 == score == task.score(model, data)
    assert np.allclose(moved, -0.01 * recorded_gradient("resnet-50", 0), rtol=1e-6, atol=0)


def exchanged(rank: int, ranks: int) -> tuple[int, Any]:
    """A rank's first sample, and the gradient that it has after two steps in DDP."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        task = find("trace-resnet-50")
        data = task.load(0)
        batches = own_batches(len(data.inputs), task.batch, seed=0)
        wrapped = wrap("fp32", task.model(data), Place())
        first = next(batches)
        samples = data.inputs[first]
        for rows in (first, next(batches)):
            wrapped.model.zero_grad()
            task.loss(wrapped.model, data.inputs[rows], data.targets[rows]).backward()
        found = torch.cat([parameter.grad.flatten() for parameter in wrapped.bare.parameters()])  # type: ignore[union-attr]
        dist.barrier()
        return int(samples[0]), found.numpy()


def test_workers_draw_gradients_of_their_own_and_average_them() -> None:
    (first, mine), (second, other) = run(2, exchanged)
    assert first != second
    mean = (recorded_gradient("resnet-50", first) + recorded_gradient("resnet-50", second)) / 2
    assert mine.size == SIZE
    assert np.array_equal(mine, other)
    assert np.allclose(mine, mean, rtol=1e-5, atol=1e-12)
