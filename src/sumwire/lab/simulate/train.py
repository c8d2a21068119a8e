"""Training of a workload by several workers in one process, with one model for all, or one for each."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sumwire.errors import NonFiniteError, RangeError
from sumwire.lab.gradients import check_sizes
from sumwire.lab.simulate.methods import Floats, Method, true_mean
from sumwire.lab.workloads import Data, Workload
from sumwire.lab.workloads.reproducible import draw_batches, reproducible

SMALL = 1024
"""Tensors of one dimension with fewer values (biases, norms) are averaged exactly, as `attach` does, by all methods."""
LEAST = 1e-300
"""Divisor where a gradient is zero."""


@dataclass
class Outcome:
    """How a training ended."""

    score: float
    """Mean over workers where they have models of their own."""
    diverged: bool
    """Values were no longer finite, and training stopped there."""
    up_bits: float
    down_bits: float
    """Mean bits per value and round, of what is compressed."""
    nmse: float
    """Mean over rounds: error of the mean by its squared norm."""
    late_nmse: float
    """The same of the sum over all rounds: errors that cancel, or come back by feedback, do not count."""
    spread: float
    """Distance of workers' parameters from their mean, by its norm; 0 if they share one model."""


@dataclass
class Training:
    """One run. Seeds decide weights, batches and dropout: runs of several methods differ in nothing else."""

    workload: Workload
    data: Data
    workers: int
    steps: int
    seed: int
    resync: int = 0
    """Steps after which all workers take the parameters of the first; 0: never."""
    constant: bool = False
    """Keep the learning rate after its warmup, where long runs are watched."""
    on_step: Callable[[int, Training], None] | None = None
    models: list[nn.Module] = field(default_factory=list)
    gradient_norm: float = 0.0
    """Root of the mean over workers of their gradients' squared norms, in the last step."""

    def run(self, build: Callable[[int], Method]) -> Outcome:
        """Train with the method that `build` makes for a number of values."""
        check_sizes(self.workload.name, self.workers, self.workload.batch, self.steps, len(self.data.inputs))
        with reproducible(self.seed):
            return self._run(build)

    def _run(self, build: Callable[[int], Method]) -> Outcome:
        first = self.workload.model(self.data)
        large = [i for i, p in enumerate(first.parameters()) if p.ndim >= 2 or p.numel() >= SMALL]
        method = build(sum(p.numel() for i, p in enumerate(first.parameters()) if i in set(large)))
        self.models = [first, *(copy.deepcopy(first) for _ in range(self.workers - 1 if method.own_means else 0))]
        optimizers = [self.workload.optimizer(model) for model in self.models]
        steps = None if self.constant else self.steps
        schedules = [self.workload.schedule(optimizer, steps) for optimizer in optimizers]
        errors = _Errors()
        diverged = False
        batches = draw_batches(
            len(self.data.inputs), self.workers * self.workload.batch, torch.Generator().manual_seed(self.seed)
        )
        for step, rows in enumerate(islice(batches, self.steps), start=1):
            xs, small = self._gradients(rows, large)
            try:
                exchange = method.average(xs)
            except (NonFiniteError, RangeError):
                diverged = True
                break
            self.gradient_norm = float(np.mean([np.square(x).sum() for x in xs]) ** 0.5)
            errors.add(exchange.means[0], xs, exchange.up_bits, exchange.down_bits)
            for model, optimizer, schedule, mean in zip(
                self.models, optimizers, schedules, exchange.means, strict=True
            ):
                _set_gradients(model, large, mean, small)
                optimizer.step()
                schedule.step()
            if self.resync and step % self.resync == 0:
                for model in self.models[1:]:
                    model.load_state_dict(first.state_dict())
            if self.on_step is not None:
                self.on_step(step, self)
        scores = [self.workload.score(model, self.data) for model in self.models]
        score = float(np.mean(scores))
        up, down, nmse, late = errors.found()
        return Outcome(score, diverged or not math.isfinite(score), up, down, nmse, late, self.spread())

    def spread(self) -> float:
        if len(self.models) < 2:
            return 0.0
        flat = torch.stack([nn.utils.parameters_to_vector(model.parameters()).detach() for model in self.models])
        center = flat.mean(0)
        return float((flat - center).norm(dim=1).mean() / center.norm())

    def _gradients(self, rows: Tensor, large: list[int]) -> tuple[list[Floats], list[Tensor]]:
        """Each worker's large tensors, flat, and the mean of the small ones."""
        xs: list[Floats] = []
        small: list[Tensor] = []
        chosen = set(large)
        for rank, mine in enumerate(rows.split(self.workload.batch)):  # type: ignore[no-untyped-call]
            model = self.models[rank % len(self.models)]
            loss = self.workload.loss(model, self.data.inputs[mine], self.data.targets[mine])
            parts = torch.autograd.grad(loss, list(model.parameters()))
            xs.append(torch.cat([part.flatten() for i, part in enumerate(parts) if i in chosen]).numpy())
            others = [part / self.workers for i, part in enumerate(parts) if i not in chosen]
            small = [a + b for a, b in zip(small, others, strict=True)] if small else others
        return xs, small


class _Errors:
    """Means over rounds."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self.error = self.exact = np.zeros(1)

    def add(self, mean: Floats, xs: list[Floats], up: float, down: float) -> None:
        exact = true_mean(xs)
        error = mean - exact
        self.rows.append((up, down, _power(error) / max(_power(exact), LEAST)))
        self.error = self.error + error
        self.exact = self.exact + exact

    def found(self) -> tuple[float, float, float, float]:
        """Bits up and down, error of a round, error of the sum of all rounds."""
        if not self.rows:
            return (0.0,) * 4
        up, down, error = np.mean(self.rows, axis=0).tolist()
        return up, down, error, _power(self.error) / max(_power(self.exact), LEAST)


def _power(x: NDArray[np.float64]) -> float:
    return float(np.square(x).sum())


def _set_gradients(model: nn.Module, large: list[int], mean: Floats, small: list[Tensor]) -> None:
    parameters = list(model.parameters())
    chosen = [parameters[i] for i in large]
    parts = torch.from_numpy(mean).split([p.numel() for p in chosen])  # type: ignore[no-untyped-call]
    for parameter, part in zip(chosen, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    rest = [p for i, p in enumerate(parameters) if i not in set(large)]
    for parameter, part in zip(rest, small, strict=True):
        parameter.grad = part.clone()
