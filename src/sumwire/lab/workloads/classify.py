"""Models whose outputs are scores of classes, or of the next or a masked byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from sumwire.lab.workloads.base import Data, Workload, evaluating


class Score(NamedTuple):
    """Scores on the held-out samples."""

    accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Classify(Workload):
    """Samples have the sample as first dimension, outputs of the model the class as last one."""

    samples: Callable[[], tuple[Tensor, Tensor]]
    """Inputs, and the classes to predict; negative ones are not scored."""
    network: Callable[[], nn.Module]
    optimize: Callable[[nn.Module], Optimizer]
    tests: int = 0
    """Held-out samples, the same for every seed. None: the model is scored on those that it is trained on."""
    metric: str = "accuracy"

    def load(self, seed: int) -> Data:
        inputs, targets = self.samples()
        if not self.tests:
            return Data(inputs, targets, inputs, targets)
        # Digits come sorted by writer and texts by title.
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
        rest, held = order[: -self.tests], order[-self.tests :]
        return Data(inputs[rest], targets[rest], inputs[held], targets[held])

    def model(self, data: Data) -> nn.Module:
        return self.network()

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self.optimize(model)

    def scores(self, model: nn.Module, data: Data) -> Score:
        """Accuracy and loss on the held-out samples."""
        with evaluating(model):
            outputs = model(data.test_inputs).flatten(0, -2)
        targets = data.test_targets.flatten()
        scored = targets >= 0
        right = (outputs.argmax(-1) == targets)[scored].float().mean()
        return Score(right.item(), F.cross_entropy(outputs, targets).item())

    def score(self, model: nn.Module, data: Data) -> float:
        return float(getattr(self.scores(model, data), self.metric))


def sgd(rate: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)


def adamw(rate: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
