"""The interface of workloads with sparse gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sumwire.lab.gradients import one_torch_thread, torch_seed


class Data(NamedTuple):
    """Training and held-out samples, with the sample as first dimension."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    sizes: tuple[int, ...]
    """Sizes that the model needs: rows of its embeddings, or classes."""


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """A model, its data and its optimizer. Options are fields; `dataclasses.replace` makes a variant.

    `batch` is in samples per worker. After `steps` the model is in mid-training.
    """

    name: str
    description: str
    batch: int
    steps: int
    metric: ClassVar[str]
    """Name of the score."""

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


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seed torch's global generator and use one thread, so that results repeat; restore both on exit."""
    with torch_seed(seed), one_torch_thread():
        yield


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
