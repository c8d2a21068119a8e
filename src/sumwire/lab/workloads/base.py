"""The interface of workloads: a model, its data, its loss, its optimizer and its metric."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sumwire.errors import ConfigError


class Data(NamedTuple):
    """Training and held-out samples, with the sample as first dimension."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    sizes: tuple[int, ...] = ()
    """Sizes that the model needs: rows of its embeddings, or classes."""


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """Everything that training needs. Options are fields; `dataclasses.replace` makes a variant.

    `batch` is in samples per worker. After `steps` the model is in mid-training.
    """

    name: str
    description: str
    batch: int
    steps: int
    metric: str
    """Name of the score."""
    warmup: int = 0
    """Steps in which the learning rate of `schedule` rises."""
    every: int = 5
    """Steps from one evaluation of a comparison to the next."""
    target: float | None = None
    """Score that comparisons train to."""

    @abstractmethod
    def load(self, seed: int) -> Data:
        """The data set; the seed matters if samples are random."""

    @abstractmethod
    def model(self, data: Data) -> nn.Module:
        """A new model with weights from torch's global generator."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The training loss. Calls `model` once, so that DDP can wrap it."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer: ...

    @abstractmethod
    def score(self, model: nn.Module, data: Data) -> float:
        """The metric of an unwrapped model on the held-out samples."""

    @property
    def sign(self) -> int:
        """1 if a higher score is better, -1 if a lower one is."""
        return -1 if self.metric == "loss" else 1

    def check_target(self, target: float | None = None) -> float:
        """This target, or the workload's own, if it is one that the metric can reach."""
        target = self.target if target is None else target
        if target is None:
            raise ConfigError(f"workload {self.name!r} has no target of its own: give one")
        if self.sign > 0 and not 0 < target <= 1:
            raise ConfigError(f"{target:g} is not an accuracy: give a number above 0 and at most 1 (97 % is 0.97)")
        if not 0 < target < math.inf:
            raise ConfigError(f"{target:g} is not a loss: give a finite number above 0")
        return target

    def schedule(self, optimizer: Optimizer, steps: int | None) -> LambdaLR:
        """Linear warmup, multiplied by a cosine decay that reaches zero at the last step; None: without decay."""
        if steps is None:
            return LambdaLR(optimizer, lambda t: min(1, (t + 1) / max(1, self.warmup)))
        rise = max(1, min(self.warmup, steps // 4))
        return LambdaLR(optimizer, lambda t: min(1, (t + 1) / rise) * 0.5 * (1 + math.cos(math.pi * min(1, t / steps))))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Disable dropout and gradients."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
