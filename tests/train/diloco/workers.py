"""Workers for tests: threads of this process that train small models, each on data of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import torch
from torch import nn

from sumwire import Sparse
from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.local import Local
from sumwire.train import DiLoCo

_seeding = Lock()
"""torch's generator belongs to all threads."""


def build(seed: int = 0) -> nn.Module:
    """Large enough to be compressed, with small tensors that are not."""
    with _seeding:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(24, 96), nn.Tanh(), nn.Linear(96, 24))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rank: int) -> None:
    """Steps on data that follow from step and rank alone."""
    for step in steps:
        generator = torch.Generator().manual_seed(1000 * rank + step)
        x = torch.randn(8, 24, generator=generator)
        optimizer.zero_grad()
        (model(x) - x.roll(1, -1) * (1 + 0.1 * rank)).square().mean().backward()
        optimizer.step()


def in_threads(workers: int, work: Callable[[Aggregator], Any], codec: Any = None) -> list[Any]:
    """`work(aggregator)` at every worker, in rank order."""
    group = Local.create(workers, codec or Sparse(workers))

    def closing(aggregator: Local) -> Any:
        try:
            return work(aggregator)
        except BaseException:
            aggregator.close()  # or the others would wait
            raise

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(closing, group))


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def trained(aggregator: Aggregator, steps: int, **options: Any) -> tuple[torch.Tensor, str, DiLoCo]:
    """Parameters and digest after that many steps."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    diloco = DiLoCo(model, optimizer, aggregator, **options)
    train(model, optimizer, range(steps), aggregator.rank)
    digest = diloco.digest()
    diloco.close()
    return values(model), digest, diloco
