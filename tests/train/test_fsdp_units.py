"""The units of FSDP2: accumulated, partly used, shared, frozen."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from sumwire.train import attach
from tests import ranks
from tests.train.fsdp_models import Gains, Result, batch, build, distance, gradients, noise, weights


def run_accumulating(rank: int, n: int) -> list[np.ndarray]:
    found = []
    for coded in (False, True):
        model = build()
        state = attach(model, bits=8, feedback=True) if coded else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(3):
            optimizer.zero_grad()
            for micro in range(3):
                model.set_requires_gradient_sync(micro == 2)
                model(batch(rank, 10 * step + micro)).square().mean().backward()
            optimizer.step()
        assert state is None or state.step == 3
        found.append(weights(model))
    return found


def test_gradient_accumulation() -> None:
    for plain, coded in ranks.run(2, run_accumulating):
        assert 0 < distance(coded, plain) < 1e-2


def run_partial(rank: int, n: int, replicas: int) -> Result:
    """Parameters without gradients are left out by FSDP2, so that two equal ones could be taken for each other."""
    mesh = dist.init_device_mesh("cpu", (replicas, n // replicas), mesh_dim_names=("replicate", "shard"))
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("sumwire").addHandler(handler)
    found: Result = {"said": said}
    for name, feedback, filled in (("no feedback", False, False), ("left out", True, False), ("filled in", True, True)):
        model, plain = (fully_shard(Gains((50_000, 50_000)), mesh=mesh) for _ in range(2))
        model.set_reduce_scatter_unused_params(filled)
        plain.set_reduce_scatter_unused_params(filled)
        attach(model, bits=8, feedback=feedback)
        found[name] = []
        for step, used in enumerate([(0,), (1,), (0, 1), (1,)]):
            for each in (model, plain):
                each.zero_grad()
                each(noise(rank, step, 50_000), used=used).backward()
            found[name].append(distance(gradients(model), gradients(plain)))
    return found


@pytest.mark.parametrize("replicas", [1, 2])
def test_parameters_without_gradients(replicas: int) -> None:
    results = ranks.run(2, run_partial, replicas)
    for result in results:
        assert all(0 < each < 0.02 for each in result["no feedback"])
        assert [each == 0 for each in result["left out"]] == [True, True, False, True]
        assert all(0 < each < 0.03 for each in result["filled in"])
    [said] = results[0]["said"]
    assert "50000 of its 100000" in said
    assert "set_reduce_scatter_unused_params" in said
    assert results[1]["said"] == []


def run_shared(rank: int, n: int) -> Result:
    """A unit that is used twice, one of two modules, and one whose parameters are frozen for a while."""
    found: Result = {}
    for coded in (False, True):
        torch.manual_seed(0)
        pair, frozen = ([nn.Linear(150, 150) for _ in range(2)] for _ in range(2))
        twice = nn.Linear(150, 150)
        model = nn.Sequential(*pair, twice, twice, nn.Sequential(*frozen))
        for each in (pair, twice, model[-1], model):
            fully_shard(each)
        state = attach(model, bits=8, feedback=True) if coded else None
        grads = []
        for step in range(3):
            frozen[0].requires_grad_(step != 1)
            model.zero_grad()
            model(noise(rank, step, 3_000).reshape(20, 150)).square().mean().backward()
            grads.append(gradients(model))
        found["coded" if coded else "plain"] = grads
        if state is not None:
            found["calls"] = {name: unit.calls for name, unit in state.units.items()}
    return found


def test_units_of_several_modules_used_twice_or_frozen() -> None:
    for result in ranks.run(2, run_shared):
        for coded, plain in zip(result["coded"], result["plain"], strict=True):
            assert 0 < distance(coded, plain) < 0.03
        assert result["calls"] == {"0": 3, "2": 3, "4": 3}
