"""One run: a small GPT at several workers of one process, by DiLoCo or by averaging every step's gradients."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.sites.gradients import Averager
from sumwire.aggregate.base import Workspace
from sumwire.aggregate.local import Local
from sumwire.codec.algebra import Payload, Sum, Terms
from sumwire.codec.lattice.codec import Lattice
from sumwire.lab.workloads import Data, find
from sumwire.lab.workloads.data import CONTEXT
from sumwire.lab.workloads.models import GPT
from sumwire.lab.workloads.reproducible import seeded
from sumwire.train import DiLoCo

DILOCO: dict[str, dict[str, Any]] = {
    "fp32": {"bits": 32},
    "4": {"bits": 4},
    "4+feedback": {"bits": 4, "feedback": True},
    "3+feedback": {"bits": 3, "feedback": True},
    "2": {"bits": 2},
    "2+feedback": {"bits": 2, "feedback": True},
}
"""Options of `DiLoCo`, by method; methods of the other kind begin with "ddp-"."""
WORKLOAD = "transformer"
"""Whose text and score these runs have; the model's size is the case's."""
POINTS = 24
"""Evaluations of a run whose gradients are averaged; DiLoCo is evaluated after every outer step."""


@dataclass(frozen=True)
class Case:
    """What runs of all methods and seeds have in common."""

    workers: int
    every: int
    steps: int
    width: int
    layers: int
    batch: int

    def model(self, seed: int) -> nn.Module:
        return seeded(lambda: GPT(width=self.width, layers=self.layers), seed)

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.model(0).parameters())

    @property
    def step_tokens(self) -> int:
        """Of one worker."""
        return self.batch * CONTEXT


@dataclass
class Result:
    """What a run gave."""

    curve: list[tuple[int, float]] = field(default_factory=list)
    """(inner steps, held-out loss)"""
    up: float = 0.0
    """Bytes that a worker sends to a server in one exchange, without headers of frames."""
    down: float = 0.0
    step_seconds: float = math.nan
    """CPU time of one worker's inner step, on one thread: does not depend on what else the machine does."""


class Metered(Local):
    """Counts what would travel."""

    up = down = 0

    def join(self, terms: Terms, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        joined = super().join(terms, round_id=round_id, workspace=workspace)
        self.up, self.down = self.up + terms.nbytes, self.down + joined.nbytes
        return joined

    def add(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        total = super().add(payload, workspace=workspace)
        self.up, self.down = self.up + payload.nbytes, self.down + total.nbytes
        return total


class Worker:
    """A model with its optimizer, its schedule and its batches."""

    def __init__(self, case: Case, data: Data, seed: int, rank: int) -> None:
        self._case, self._data = case, data
        self.model = case.model(seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        rise = max(1, min(20, case.steps // 4))
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda t: min(1, (t + 1) / rise) * 0.5 * (1 + math.cos(math.pi * min(1, t / case.steps)))
        )
        self._generators = {rank: torch.Generator().manual_seed(1_000_003 * seed + rank)}
        self._seed = seed

    def compute(self, rank: int) -> None:
        """Gradients of the next batch of this rank."""
        generator = self._generators.setdefault(rank, torch.Generator().manual_seed(1_000_003 * self._seed + rank))
        rows = torch.randint(len(self._data.inputs), (self._case.batch,), generator=generator)
        self.optimizer.zero_grad()
        scores = self.model(self._data.inputs[rows]).flatten(0, 1)
        F.cross_entropy(scores, self._data.targets[rows].flatten()).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self.optimizer.step()
        self._schedule.step()

    def loss(self) -> float:
        return find(WORKLOAD).score(self.model, self._data)


def train(case: Case, data: Data, method: str, seed: int) -> Result:
    if method in DILOCO:
        return _diloco(case, data, seed, DILOCO[method])
    return _every_step(case, data, seed, method.removeprefix("ddp-"))


def _diloco(case: Case, data: Data, seed: int, options: dict[str, Any]) -> Result:
    group = [worker for worker in Metered.create(case.workers, Lattice(case.workers)) if isinstance(worker, Metered)]
    workers = [Worker(case, data, seed, rank) for rank in range(case.workers)]
    result, seconds, turn = Result(), _Seconds(), threading.Lock()

    def work(mine: Metered) -> None:
        worker = workers[mine.rank]
        diloco = DiLoCo(worker.model, worker.optimizer, mine, every=case.every, seed=seed, **options)
        mine.up = mine.down = 0  # the first comparison is no exchange
        try:
            for step in range(1, case.steps + 1):
                with turn, seconds.counted():  # one after another: a core's cache has room for one model
                    worker.compute(mine.rank)
                worker.step()
                if step % case.every == 0 and mine.rank == 0:
                    with turn:
                        result.curve.append((step, worker.loss()))
        except BaseException:
            mine.close()  # or the others would wait
            raise
        diloco.close()

    with ThreadPoolExecutor(case.workers) as pool:
        list(pool.map(work, group))
    exchanges = case.steps // case.every
    result.up, result.down = group[0].up / exchanges, group[0].down / exchanges
    result.step_seconds = seconds.median
    return result


def _every_step(case: Case, data: Data, seed: int, method: str) -> Result:
    """As DDP: all workers have the same model, so that one will do, and gradients are averaged in every step."""
    worker, result, seconds = Worker(case, data, seed, 0), Result(), _Seconds()
    parameters = list(worker.model.parameters())
    average = Averager(method, case.workers, parameters, seed)
    for step in range(1, case.steps + 1):
        gradients = []
        for rank in range(case.workers):
            with seconds.counted():
                worker.compute(rank)
            gradients.append([_gradient(parameter).clone() for parameter in parameters])
        for parameter, mean in zip(parameters, average(gradients), strict=True):
            _gradient(parameter).copy_(mean)
        worker.step()
        if step % max(1, case.steps // POINTS) == 0:
            result.curve.append((step, worker.loss()))
    result.up, result.down = average.up / case.steps, average.down / case.steps
    result.step_seconds = seconds.median
    return result


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class _Seconds:
    """CPU time of `with` blocks, of whichever threads."""

    def __init__(self) -> None:
        self._all: list[float] = []

    def counted(self) -> _Seconds:
        return self

    def __enter__(self) -> None:
        self._start = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._all.append(time.thread_time() - self._start)

    @property
    def median(self) -> float:
        return median(self._all)
