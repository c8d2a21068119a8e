"""Gradients of real models in mid-training, as data-parallel workers compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sumwire.errors import ConfigError
from sumwire.lab.workloads.base import Workload
from sumwire.lab.workloads.registry import find
from sumwire.lab.workloads.reproducible import draw_batches, reproducible


def worker_gradients(
    workload: str | Workload,
    workers: int,
    *,
    steps: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """Train one model for `steps`, then take each worker's gradient on its own batch.

    A gradient is flat, in the order of `model.parameters()`, and is the gradient of the loss: no momentum, no weight
    decay. Training and workers use the same `batch` size, and the workers' batches are disjoint. Equal seeds give
    equal bytes on one machine; torch's global random state is restored.
    """
    source = Source(workload, workers, steps, batch, seed)
    with reproducible(seed):
        model = source.train(on_step)
        return [torch.cat([part.flatten() for part in parts]).numpy() for parts in source.gradients(model)]


class Source:
    """One training run, up to the workers' gradients; used inside `reproducible`."""

    def __init__(self, workload: str | Workload, workers: int, steps: int | None, batch: int | None, seed: int) -> None:
        self.workload = find(workload) if isinstance(workload, str) else workload
        self.workers = workers
        self.steps = self.workload.steps if steps is None else steps
        self.batch = self.workload.batch if batch is None else batch
        self.data = self.workload.load(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.losses: list[float] = []
        """Of training, one per step."""
        check_sizes(self.workload.name, workers, self.batch, self.steps, len(self.data.inputs))

    def train(self, on_step: Callable[[int, int], None] | None = None) -> nn.Module:
        """A model after all steps; calls `on_step(done, steps)` after each."""
        model = self.workload.model(self.data)
        optimizer = self.workload.optimizer(model)
        for step, rows in enumerate(islice(self._batches(), self.steps), start=1):
            optimizer.zero_grad()
            loss = self._loss(model, rows)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self.losses.append(loss.item())
            if on_step is not None:
                on_step(step, self.steps)
        return model

    def gradients(self, model: nn.Module) -> Iterator[list[Tensor]]:
        """Of each worker, by tensor."""
        # A new epoch: the rest of the current one may be too short for all workers.
        for rows in islice(self._batches(), self.workers):
            parts = torch.autograd.grad(self._loss(model, rows), list(model.parameters()))
            yield [part.to_dense() if part.is_sparse else part for part in parts]

    def _batches(self) -> Iterator[Tensor]:
        return draw_batches(len(self.data.inputs), self.batch, self.generator)

    def _loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        return self.workload.loss(model, self.data.inputs[rows], self.data.targets[rows])


def check_sizes(workload: str, workers: int, batch: int, steps: int, samples: int) -> None:
    """Raise `ConfigError` unless every worker gets a batch of its own from these samples."""
    if workers < 1 or batch < 1 or steps < 0:
        raise ConfigError(
            f"cannot take workers={workers}, batch={batch}, steps={steps}: pass workers>=1, batch>=1, steps>=0"
        )
    if workers * batch > samples:
        raise ConfigError(
            f"{workers} disjoint batches of {batch} need {workers * batch} samples: {workload!r} has {samples}; "
            f"lower workers or batch so that workers*batch<={samples}"
        )
