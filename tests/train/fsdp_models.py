"""Models, data and training loops of the tests of FSDP2."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

Result = dict[str, Any]


class Net(nn.Module):
    """Odd sizes, so that shards are padded; some units large enough to be compressed, one not."""

    def __init__(self, width: int = 181) -> None:
        super().__init__()
        self.stem = nn.Linear(20, width)
        self.first = nn.Linear(width, width)
        self.second = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.stem(x))
        h = h + torch.relu(self.first(h))
        out: torch.Tensor = self.head(h + self.second(h))
        return out


class Gains(nn.Module):
    """Elementwise only, so that one can tell what its gradients are."""

    def __init__(self, sizes: tuple[int, ...] = (40_003, 1, 5_000)) -> None:
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.linspace(-1, 1, size)) for size in sizes)

    def forward(self, x: torch.Tensor, used: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
        return torch.stack([(self.gains[k] * x[: len(self.gains[k])]).square().mean() for k in used]).sum()


def batch(rank: int, step: int, rows: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, 20, generator=generator)


def noise(rank: int, step: int, size: int = 40_003) -> torch.Tensor:
    return batch(rank, step, rows=-(-size // 20)).reshape(-1)[:size]


def build(seed: int = 0, **options: Any) -> Any:
    """Three units: two of modules, the rest in the root."""
    torch.manual_seed(seed)
    net = Net()
    for module in (net.first, net.second, net):
        fully_shard(module, **options)
    return net


def train(rank: int, model: nn.Module, steps: range, optimizer: Any = None) -> tuple[Any, list[float]]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        x = batch(rank, step)
        loss = (model(x) - x[:, :5]).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return optimizer, losses


def full(tensors: Any) -> np.ndarray:
    return torch.cat([tensor.full_tensor().detach().reshape(-1).double() for tensor in tensors]).numpy()


def weights(model: nn.Module) -> np.ndarray:
    return full(model.parameters())


def gradients(model: nn.Module) -> np.ndarray:
    return full(p.grad for p in model.parameters() if p.grad is not None)


def rows(model: nn.Module, shards: int) -> np.ndarray:
    """Gradients as FSDP2 lays them out: every parameter cut into chunks, padded with zeros."""
    return torch._chunk_cat([p.grad for p in model.parameters()], dim=0, num_chunks=shards).numpy()


def unsharded(rows: Any, sizes: list[int]) -> np.ndarray:
    """The whole tensors, one after another, from their rows."""
    whole, start = [], 0
    for size in sizes:
        chunk = -(-size // len(rows))
        whole.append(np.concatenate([row[start : start + chunk] for row in rows])[:size])
        start += chunk
    return np.concatenate(whole)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
