"""A comparison of training methods: what ranks are told, what each of them does, and the evaluations that they report.

`compare` launches this module on every rank, with serialized `Settings` as its argument. Every method starts from the
same weights and sees the same batches. The clock runs while gradients are computed, exchanged and applied, not during
evaluation.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sumwire.errors import ConfigError
from sumwire.lab.launch import launch, report
from sumwire.lab.links import Network
from sumwire.lab.methods import Place, Wrapped, check_network, wrap
from sumwire.lab.workloads import TARGETS, Data, Workload, find
from sumwire.lab.workloads.classify import Classify
from sumwire.lab.workloads.reproducible import draw_batches, seeded

_START = 300.0
_STEP = 3.0
"""Timeouts in seconds, for startup and per step: generous, because machines may be busy."""


@dataclass(frozen=True)
class Settings:
    """What every rank needs to run the same comparison."""

    workload: str
    methods: tuple[str, ...]
    steps: int
    every: int
    """Steps between evaluations."""
    seed: int
    interface: str | None
    """The interface whose counters measure the bytes sent; None: bytes are calculated."""
    aggregator: str
    token: str
    """Of the network, for methods that use them."""
    resync: int = 0
    """Steps after which the method "resync" makes parameters equal again; 0: an epoch, as THC's authors do."""

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Settings:
        fields = json.loads(text)
        return cls(**fields | {"methods": tuple(fields["methods"])})


@dataclass(frozen=True)
class Point:
    """One evaluation: training steps, training seconds and bytes sent per rank so far, and the scores."""

    step: int
    seconds: float
    sent: float
    accuracy: float
    loss: float


@dataclass
class Run:
    """The training run of one method, evaluation by evaluation."""

    method: str
    points: list[Point] = field(default_factory=list)
    identical: bool | None = None
    """Whether all ranks ended with bit-identical weights; None while the run is in progress."""
    codec_ms: float | None = None
    """What a rank spent per step on encoding, adding and decoding, without exchanges; mean over ranks and steps, once
    the run is over. 0 of methods that do not say."""

    def score(self, metric: str) -> list[float]:
        return [getattr(point, metric) for point in self.points]

    def reached(self, metric: str, target: float) -> Point | None:
        """The first evaluation of a trained model that meets the target."""
        sign = 1 if metric == "accuracy" else -1
        trained = zip(self.points[1:], self.score(metric)[1:], strict=True)
        return next((point for point, score in trained if sign * score >= sign * target), None)

    @property
    def step_seconds(self) -> float:
        """Median over the intervals between evaluations, which ignores slow first steps."""
        return self._median("seconds")

    @property
    def step_bytes(self) -> float:
        return self._median("sent")

    def _median(self, name: str) -> float:
        return median(float(getattr(b, name) - getattr(a, name)) / (b.step - a.step) for a, b in pairwise(self.points))


def find_task(name: str) -> Classify:
    """A workload that has the scores of comparisons."""
    found = find(name)
    if not isinstance(found, Classify):
        raise ConfigError(f"cannot compare methods on {name!r}: choose from {', '.join(TARGETS)}")
    return found


def record(runs: dict[str, Run], line: dict[str, Any]) -> Run:
    """Add what a rank reported to its method's run."""
    run = runs.setdefault(line["method"], Run(line["method"]))
    if "identical" in line:
        run.identical, run.codec_ms = line["identical"], line.get("codec_ms")
    else:
        run.points.append(Point(**{key: value for key, value in line.items() if key != "method"}))
    return run


def compare(
    network: Network,
    task: Classify,
    methods: Sequence[str],
    *,
    seed: int = 0,
    steps: int | None = None,
    resync: int = 0,
    every: int | None = None,
    watch: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Run the methods one after the other in the same processes; `watch` is called after every evaluation.

    `resync`: steps after which the method of that name makes parameters equal again (default: an epoch). Models are
    evaluated after each `every` steps (default: the task's), which DiLoCo trains alone in between.
    """
    steps, every = steps or task.steps, every or task.every
    interface = network.hosts[0].interface if network.shaped else None
    check_network(methods, network)
    settings = Settings(
        task.name, tuple(methods), steps, min(every, steps), seed, interface, network.aggregator, network.token, resync
    )
    runs: dict[str, Run] = {}

    def on_line(line: dict[str, Any]) -> None:
        watch(record(runs, line))

    timeout = _START + _STEP * steps * len(methods)
    launch(network, "sumwire.lab.comparison", [settings.dumps()], on_line=on_line, timeout=timeout)
    return [runs[method] for method in methods]


class Clock:
    """Seconds of training, and the bytes that the interface sent in that time."""

    def __init__(self, interface: str | None) -> None:
        self.seconds = 0.0
        self.sent = 0.0
        self._interface = interface
        self._began = (0.0, 0)

    def start(self) -> None:
        dist.barrier()
        self._began = perf_counter(), sent_bytes(self._interface)

    def stop(self) -> None:
        # A step is complete when every rank has completed it.
        dist.barrier()
        began, sent = self._began
        self.seconds += perf_counter() - began
        self.sent += sent_bytes(self._interface) - sent


def sent_bytes(interface: str | None) -> int:
    """Bytes sent so far by an interface of this process's network namespace; 0 if there is none."""
    if interface is None:
        return 0
    with open("/proc/self/net/dev") as file:
        rows = dict(line.split(":") for line in file if ":" in line)
    return int({name.strip(): row for name, row in rows.items()}[interface].split()[8])


class Trainer:
    """The model of one method, its optimizer and its batches."""

    def __init__(self, task: Workload, data: Data, wrapped: Wrapped, batches: Iterator[Tensor], *, steps: int) -> None:
        self.wrapped = wrapped
        self.task, self.data, self.batches = task, data, batches
        self.optimizer = task.optimizer(wrapped.model)
        wrapped.follow(self.optimizer)
        self.schedule = task.schedule(self.optimizer, steps)

    def step(self) -> None:
        rows = next(self.batches)
        self.optimizer.zero_grad()
        loss = self.task.loss(self.wrapped.model, self.data.inputs[rows], self.data.targets[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.schedule.step()


def own_batches(samples: int, batch: int, seed: int) -> Iterator[Tensor]:
    """This rank's share of every batch; shares are disjoint."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for rows in draw_batches(samples, batch * ranks, torch.Generator().manual_seed(seed)):
        yield rows[rank * batch : (rank + 1) * batch]


def run(settings: Settings, task: Classify, data: Data, method: str, *, silent: bool = False) -> None:
    """Train for all steps and report every evaluation."""
    epoch = max(1, len(data.inputs) // (task.batch * dist.get_world_size()))
    place = Place(settings.aggregator, settings.token, settings.resync or epoch, settings.every, settings.seed)
    wrapped = wrap(method, seeded(task.network, settings.seed), place)
    batches = own_batches(len(data.inputs), task.batch, settings.seed)
    trainer = Trainer(task, data, wrapped, batches, steps=settings.steps)
    clock, computed, codec, done = Clock(settings.interface), 0.0, 0.0, 0
    model = trainer.wrapped.bare
    while True:
        sent = torch.tensor(clock.sent if settings.interface else computed, dtype=torch.float64)
        dist.all_reduce(sent)
        if dist.get_rank() == 0 and not silent:
            score = task.scores(model, data)._asdict()
            report(method=method, step=done, seconds=clock.seconds, sent=sent.item() / dist.get_world_size(), **score)
        if done == settings.steps:
            break
        interval = min(settings.every, settings.steps - done)
        clock.start()
        for _ in range(interval):
            trainer.step()
            computed += trainer.wrapped.step_bytes()
            codec += trainer.wrapped.codec_seconds()
        clock.stop()
        done += interval
    same = identical(model)
    spent = torch.tensor(codec / settings.steps, dtype=torch.float64)
    dist.all_reduce(spent)
    if dist.get_rank() == 0 and not silent:
        report(method=method, identical=same, codec_ms=1e3 * spent.item() / dist.get_world_size())
    trainer.wrapped.close()


def identical(model: nn.Module) -> bool:
    """Whether parameters are bit-identical on every rank."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    mine = torch.from_numpy(np.frombuffer(digest.digest(), np.uint8).copy())
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return all(torch.equal(mine, other) for other in every)


def main(argument: str) -> None:
    settings = Settings.loads(argument)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    task = find_task(settings.workload)
    data = task.load(settings.seed)
    # Warm up: one-time work (connections, imports, oneDNN's choices) must not count against the first method.
    run(replace(settings, steps=2), task, data, "fp32", silent=True)
    for method in settings.methods:
        run(settings, task, data, method)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # Sometimes a torch thread releases a Python object while the interpreter shuts down, which raises SIGABRT.
    os._exit(0)
