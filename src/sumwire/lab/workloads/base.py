"""What every workload with sparse gradients offers, whatever its data and its model are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Data(NamedTuple):
    """Samples, the sample as first dimension; those that scores are taken on apart."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    sizes: tuple[int, ...]
    """What the model must know: rows of its embeddings, or classes."""


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """A model, its data and its optimizer; options are fields, `dataclasses.replace` gives a variant.

    `batch` is each worker's, in samples. `steps` is where the model is in mid-training.
    """

    name: str
    description: str
    batch: int
    steps: int
    metric: ClassVar[str]
    """What `score` returns."""

    @abstractmethod
    def load(self, seed: int) -> Data:
        """The data set; the seed matters where samples are drawn."""

    @abstractmethod
    def model(self, data: Data) -> nn.Module:
        """A new model, its weights drawn from torch's global generator."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss to train on. Calls `model` once, so that it may be wrapped by DDP."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer: ...

    @abstractmethod
    def score(self, model: nn.Module, data: Data) -> float:
        """The metric on the samples held out, of a model that is not wrapped."""


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Weights, dropout and samples come from the seed, and sums keep one order; then all is as it was."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also reseed the caller's GPUs, which this fork does not restore.
        torch.default_generator.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextmanager
def judging(model: nn.Module) -> Iterator[None]:
    """No dropout and no gradients."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
