"""DDP over an aggregator in the network: unchanged but for the address, exact or with losses and resync."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sumwire import ConfigError, Lattice, average, connect
from sumwire.train import attach
from sumwire.train.ddp.round import Part
from tests import ranks
from tests.aggregate.network.netting import SECRET, BadPath, aggregating

SIZE, STEPS, LOSSY_STEPS = 20_000, 3, 26


class Weighted(nn.Module):
    """The gradient of its weight is whatever it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def gradient(rank: int, step: int) -> Any:
    return np.random.default_rng((rank, step)).standard_normal(SIZE, dtype=np.float32)


def train(rank: int, n: int, address: str) -> list[Any]:
    """The exact steps of the warm-up, then compressed ones, with the numbers that decide their random numbers."""
    model = DistributedDataParallel(Weighted())
    state = attach(model, server=address, token=SECRET, bits=4, seed=7, warmup=1, fallback=False, sample_every=0)
    found = []
    for step in range(STEPS):
        model.zero_grad()
        model(torch.from_numpy(gradient(rank, step))).backward()
        found.append((state.start().ids.noise(0, Part.SPAN), model.module.weight.grad.numpy().copy()))
    codec = state.codec
    state.close()
    return [found, codec]


def test_gradients_have_the_bits_of_one_process() -> None:
    n = 2
    with aggregating(n, mtu=9000) as aggregator:
        results = ranks.run(n, train, aggregator.address)
    codec = results[0][1]
    assert isinstance(codec, Lattice)
    assert codec.widths == (0, 1, 2, 4, 8)
    for step in range(STEPS):
        xs = [gradient(rank, step) for rank in range(n)]
        for found, _ in results:
            number, mean = found[step]
            right = np.mean(xs, 0) if step == 0 else average(codec, xs, round_id=number)  # the first step is exact
            np.testing.assert_array_equal(mean, right)


class Distance(nn.Module):
    """How far its weight is from a target."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))

    def forward(self, target: torch.Tensor) -> torch.Tensor:
        return (self.weight - target).square().sum() / 2


def descend(rank: int, n: int, port: int, resync: int | None) -> tuple[float, Any]:
    """SGD over a path that loses 3 % each way, in lossy mode: the squared distance from the target, and the weights."""
    path = BadPath(("127.0.0.1", port), loss=0.03, doubled=0.02, late=0.0, seed=rank)
    link = connect(f"udp://127.0.0.1:{path.port}", rank=rank, workers=n, token=SECRET, loss="lossy", timeout=30.0)
    model = DistributedDataParallel(Distance())
    state = attach(model, server=link, bits=4, warmup=0, fallback=False, exact_below=0, feedback=True, resync=resync)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    target = torch.from_numpy(gradient(n, 0))
    for step in range(LOSSY_STEPS):
        torch.distributed.barrier()  # so that a slow machine makes a worker late for chunks, and not for whole steps
        optimizer.zero_grad()
        model(target + torch.from_numpy(gradient(rank, step)) / 10).backward()
        optimizer.step()
    weights = model.module.weight.detach().numpy().copy()
    state.close()
    link.close()
    path.close()
    return float(np.square(weights - target.numpy()).mean()), weights


@pytest.mark.parametrize("resync", [None, 5])
def test_training_converges_with_losses(resync: int | None) -> None:
    n = 2
    with aggregating(n, deadline=0.2) as aggregator:
        results = ranks.run(n, descend, aggregator.port, resync)
    for error, _ in results:
        assert error < 0.02  # it was 1 at the beginning
    apart = np.abs(results[0][1] - results[1][1]).max()
    assert apart < (0.05 if resync else 0.5)


def test_options_that_packets_do_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="packets have neither named jobs nor TLS"):
        attach(nn.Linear(2, 2), server="udp://127.0.0.1", job="digits")
