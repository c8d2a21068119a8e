"""The ranks of a contest: train the same model by one method after the other, and report how it goes.

Started by `launch`, with a `Plan` as argument. Every method has the same initial weights and the same
batches. The clock runs while gradients are computed, exchanged and applied, not while a model is judged.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sumwire.lab.gradients import draw_batches, loss_of, seeded
from sumwire.lab.launch import report
from sumwire.lab.methods import Wrapped, wrap
from sumwire.lab.plan import Plan
from sumwire.lab.tasks import TASKS, Data, Task, evaluate, load, schedule


class Clock:
    """Seconds of training, and bytes that the interface sent meanwhile."""

    def __init__(self, interface: str | None) -> None:
        self.seconds = 0.0
        self.sent = 0.0
        self._interface = interface
        self._began = (0.0, 0)

    def start(self) -> None:
        dist.barrier()
        self._began = perf_counter(), sent_bytes(self._interface)

    def stop(self) -> None:
        # A step is over when it is over at every rank.
        dist.barrier()
        began, sent = self._began
        self.seconds += perf_counter() - began
        self.sent += sent_bytes(self._interface) - sent


def sent_bytes(interface: str | None) -> int:
    """What an interface of this process's network namespace has sent."""
    if interface is None:
        return 0
    with open("/proc/self/net/dev") as file:
        rows = dict(line.split(":") for line in file if ":" in line)
    return int({name.strip(): row for name, row in rows.items()}[interface].split()[8])


class Trainer:
    """One method's model on its way."""

    def __init__(self, plan: Plan, task: Task, data: Data, wrapped: Wrapped) -> None:
        self.wrapped = wrapped
        self.data = data
        self.optimizer = task.optimizer(wrapped.model)
        self.schedule = schedule(task, self.optimizer, plan.steps)
        self.batches = _mine(len(data.inputs), task.batch, plan.seed)

    def step(self) -> None:
        rows = next(self.batches)
        self.optimizer.zero_grad()
        loss_of(self.wrapped.model, self.data.inputs[rows], self.data.targets[rows]).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.schedule.step()


def _mine(samples: int, batch: int, seed: int) -> Iterator[Tensor]:
    """This rank's part of every batch; parts are disjoint."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for rows in draw_batches(samples, batch * ranks, torch.Generator().manual_seed(seed)):
        yield rows[rank * batch : (rank + 1) * batch]


def run(plan: Plan, task: Task, data: Data, method: str, *, silent: bool = False) -> None:
    """Train from the first weight to the last step, and report every evaluation."""
    trainer = Trainer(plan, task, data, wrap(method, seeded(task.model, plan.seed)))
    clock, computed, done = Clock(plan.interface), 0.0, 0
    model: DistributedDataParallel = trainer.wrapped.model
    while True:
        sent = torch.tensor(clock.sent if plan.interface else computed, dtype=torch.float64)
        dist.all_reduce(sent)
        if dist.get_rank() == 0 and not silent:
            score = evaluate(model.module, data)._asdict()
            report(method=method, step=done, seconds=clock.seconds, sent=sent.item() / dist.get_world_size(), **score)
        if done == plan.steps:
            break
        stretch = min(plan.every, plan.steps - done)
        clock.start()
        for _ in range(stretch):
            trainer.step()
            computed += trainer.wrapped.step_bytes()
        clock.stop()
        done += stretch
    same = identical(model.module)
    if dist.get_rank() == 0 and not silent:
        report(method=method, identical=same)
    trainer.wrapped.close()


def identical(model: nn.Module) -> bool:
    """Whether the parameters have the same bits at every rank."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    mine = torch.from_numpy(np.frombuffer(digest.digest(), np.uint8).copy())
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return all(torch.equal(mine, other) for other in every)


def main(argument: str) -> None:
    plan = Plan.loads(argument)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    task = TASKS[plan.workload]
    data = load(task)
    # What is done once in a process (connections, imports, oneDNN's choices) must not count against who comes first.
    run(replace(plan, steps=2), task, data, "fp32", silent=True)
    for method in plan.methods:
        run(plan, task, data, method)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # Now and then a thread of torch's still lets go of a Python object while the interpreter ends: SIGABRT.
    os._exit(0)
