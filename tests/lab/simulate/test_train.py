"""Training of simulated workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sumwire import Lattice
from sumwire.errors import ConfigError, RangeError
from sumwire.lab.peers import PEERS
from sumwire.lab.simulate import ByPeer, Conditions, Exchange, Method, OverNetwork, Training
from sumwire.lab.workloads import find
from sumwire.lab.workloads.reproducible import draw_batches, reproducible

MLP = find("perceptron")
DATA = MLP.load(0)


def training(workers: int, steps: int, *, resync: int = 0) -> Training:
    return Training(MLP, DATA, workers, steps, seed=3, resync=resync)


def fp32(workers: int) -> ByPeer:
    return ByPeer(PEERS["fp32"](workers, sum(p.numel() for p in MLP.model(DATA).parameters() if p.ndim > 1)))


def test_one_worker_trains_as_torch_does() -> None:
    with reproducible(3):
        model = MLP.model(DATA)
        optimizer = MLP.optimizer(model)
        schedule = MLP.schedule(optimizer, 5)
        for rows in islice(draw_batches(len(DATA.inputs), MLP.batch, torch.Generator().manual_seed(3)), 5):
            optimizer.zero_grad()
            MLP.loss(model, DATA.inputs[rows], DATA.targets[rows]).backward()
            optimizer.step()
            schedule.step()
    run = training(1, 5)
    outcome = run.run(lambda size: fp32(1))
    for mine, other in zip(run.models[0].parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert outcome.score == MLP.score(model, DATA)
    assert (outcome.up_bits, outcome.nmse, outcome.late_nmse, outcome.spread) == (32, 0, 0, 0)


def test_a_seed_decides_the_outcome() -> None:
    def once(loss: float) -> object:
        return training(2, 3).run(lambda size: OverNetwork(Lattice(2, 4), Conditions(loss=loss), seed=0))

    assert once(0.1) == once(0.1)
    assert once(0.1) != once(0.2)


def test_lost_results_part_the_workers_until_they_are_made_equal() -> None:
    def spread(resync: int) -> float:
        network = OverNetwork(Lattice(3, 4), Conditions(loss=0.2), seed=0)
        return training(3, 4, resync=resync).run(lambda size: network).spread

    assert spread(0) > 1e-4
    assert spread(2) < 1e-6  # their mean is rounded
    assert 1e-6 < spread(3) < spread(0)


class Failing(Method):
    def average(self, xs: Sequence[NDArray[np.float32]]) -> Exchange:
        raise RangeError("too large")


def test_training_that_diverges_says_so() -> None:
    assert training(2, 3).run(lambda size: Failing()).diverged
    assert not training(2, 1).run(lambda size: fp32(2)).diverged


def test_the_rate_of_long_runs_does_not_fall() -> None:
    optimizer = MLP.optimizer(MLP.model(DATA))
    schedule = MLP.schedule(optimizer, None)
    rates = []
    for _ in range(50):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(0.005)
    assert rates[MLP.warmup :] == [0.05] * 40


def test_too_many_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="'perceptron' has 1200; lower workers or batch"):
        training(151, 1).run(lambda size: fp32(151))
