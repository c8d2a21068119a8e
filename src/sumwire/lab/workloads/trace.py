"""Published models at their true sizes, without their layers: gradients are drawn from recordings of real ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from sumwire.lab.workloads.base import Data, Workload
from sumwire.lab.workloads.recorded import recorded_gradient
from sumwire.lab.workloads.shapes import SHAPES

SAMPLES = 1 << 12
"""As many workers at most draw gradients of their own."""


class _Gradients(torch.autograd.Function):
    """Zero, with these gradients."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.gradients


class TraceModel(nn.Module):
    """The tensors of a published model, whose gradients are the same in every step, and others at every worker."""

    def __init__(self, shapes: str) -> None:
        super().__init__()
        self.shapes = shapes
        self.tensors = nn.ParameterList(torch.zeros(shape) for shape in SHAPES[shapes])
        self._gradients: list[Tensor] = []

    def forward(self, samples: Tensor) -> Tensor:
        if not self._gradients:
            flat = torch.from_numpy(recorded_gradient(self.shapes, int(samples[0])))
            parts = flat.split([math.prod(shape) for shape in SHAPES[self.shapes]])  # type: ignore[no-untyped-call]
            self._gradients = [part.view(shape) for part, shape in zip(parts, SHAPES[self.shapes], strict=True)]
        found: Tensor = _Gradients.apply(self._gradients, *self.tensors)  # type: ignore[no-untyped-call]
        return found


@dataclass(frozen=True, kw_only=True)
class Trace(Workload):
    """A sample is a number; the first that a worker sees decides its gradient."""

    shapes: str
    batch: int = 1
    steps: int = 10
    metric: str = "loss"

    def load(self, seed: int) -> Data:
        samples = torch.arange(SAMPLES)
        return Data(samples, samples, samples[:1], samples[:1])

    def model(self, data: Data) -> nn.Module:
        return TraceModel(self.shapes)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = model(inputs)
        return loss

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.01)

    def score(self, model: nn.Module, data: Data) -> float:
        """Nothing is learned."""
        return 0.0
