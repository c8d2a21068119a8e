"""Models, data and training loops of the tests of DDP."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sumwire.train import attach

Result = dict[str, Any]


class Net(nn.Module):
    """Two towers of different depth, so that gradients arrive in another order than parameters were made."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Linear(20, width)
        self.norm = nn.LayerNorm(width)
        self.body = nn.Linear(width, width)
        self.side = nn.Linear(20, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, *, use_side: bool = True) -> torch.Tensor:
        h = torch.relu(self.body(torch.relu(self.norm(self.stem(x)))))
        if use_side:
            h = h + self.side(x)
        out: torch.Tensor = self.head(h)
        return out


def batch(rank: int, step: int, rows: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, 20, generator=generator)


def build(seed: int = 0, **ddp: Any) -> DistributedDataParallel:
    torch.manual_seed(seed)
    return DistributedDataParallel(Net(), **{"bucket_cap_mb": 0.02, **ddp})


def train(
    rank: int, model: DistributedDataParallel, steps: range, optimizer: torch.optim.Optimizer | None = None
) -> torch.optim.Optimizer:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        x = batch(rank, step)
        (model(x) - x[:, :5]).square().mean().backward()
        optimizer.step()
    return optimizer


def weights(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


def same(results: list[np.ndarray]) -> None:
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def run_plain(rank: int, n: int, steps: int) -> np.ndarray:
    model = build()
    train(rank, model, range(steps))
    return weights(model)


def run_attached(rank: int, n: int, steps: int, options: dict[str, Any], ddp: dict[str, Any]) -> np.ndarray:
    model = build(**ddp)
    attach(model, **{"fallback": False, "algorithm": "sharded", "warmup": 1, **options})
    train(rank, model, range(steps))
    return weights(model)


class Gains(nn.Module):
    """Elementwise only: some CPUs' matrix units crash torch in bfloat16."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(2000 + 37 * k, dtype=dtype)) for k in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([(gain * x[: len(gain)]).square().mean() for gain in self.gains]).sum()
