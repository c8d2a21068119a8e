"""Training tasks of a comparison: model, data, optimizer, and the target score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sumwire.errors import ConfigError
from sumwire.lab.models import GPT, build_resnet, digits_data, text_data


class Score(NamedTuple):
    """Scores on the held-out samples."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Task:
    """`tests` samples are held out; `batch` is per worker; the model is evaluated after each `every` steps."""

    name: str
    description: str
    load: Callable[[], tuple[Tensor, Tensor]]
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    metric: str
    target: float
    steps: int
    warmup: int
    every: int
    batch: int
    tests: int


class Data(NamedTuple):
    """Shuffled samples, split into training and held-out ones."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


TASKS: Mapping[str, Task] = MappingProxyType({
    task.name: task
    for task in (
        Task(
            "conv", "ResNet-20 on 8x8 digits, SGD with momentum", digits_data, build_resnet,
            lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
            metric="accuracy", target=0.97, steps=150, warmup=10, every=5, batch=8, tests=597,
        ),
        Task(
            "transformer", "3-layer byte-level GPT on Python's documentation, AdamW", text_data,
            lambda: GPT(width=96, layers=3),
            lambda model: AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1),
            # What fp32 reaches after 60 % of its steps (median of seeds 100 to 102).
            metric="loss", target=2.75, steps=200, warmup=20, every=5, batch=4, tests=64,
        ),
    )
})  # fmt: skip


def check_target(task: Task, target: float) -> float:
    """Return the target if it is valid for the task's metric."""
    if task.metric == "accuracy" and not 0 < target <= 1:
        raise ConfigError(f"{target:g} is not an accuracy: give a number above 0 and at most 1 (97 % is 0.97)")
    if not 0 < target < math.inf:
        raise ConfigError(f"{target:g} is not a loss: give a finite number above 0")
    return target


def load(task: Task) -> Data:
    inputs, targets = task.load()
    # Digits come sorted by writer and texts by title. Every seed holds out the same samples.
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    rest, held = order[: -task.tests], order[-task.tests :]
    return Data(inputs[rest], targets[rest], inputs[held], targets[held])


def schedule(task: Task, optimizer: Optimizer, steps: int) -> LambdaLR:
    """Linear warmup, multiplied by a cosine decay that reaches zero at the last step."""
    rise = min(task.warmup, max(1, steps // 4))
    return LambdaLR(optimizer, lambda t: min(1, (t + 1) / rise) * 0.5 * (1 + math.cos(math.pi * min(1, t / steps))))


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> Score:
    model.eval()
    scores = model(data.test_inputs).flatten(0, -2)
    model.train()
    targets = data.test_targets.flatten()
    right = (scores.argmax(-1) == targets).float().mean()
    return Score(right.item(), F.cross_entropy(scores, targets).item())
