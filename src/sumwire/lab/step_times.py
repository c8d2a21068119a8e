"""Times of steps over links: every method trains the same model for some steps, and nothing else is measured.

`step_times` launches this module on every rank. How far training gets is not its subject: what means of a method are
worth does not depend on the links, so experiments simulate that once for all of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist

from sumwire.codec.options import whole_number
from sumwire.lab.comparison import Clock, Trainer, own_batches
from sumwire.lab.launch import launch, report
from sumwire.lab.links import Network
from sumwire.lab.methods import Place, Wrapped, check_network, wrap
from sumwire.lab.workloads import find
from sumwire.lab.workloads.reproducible import seeded

WARMUP = 3
"""Steps that are not timed: two are exact, and in the first compressed one, codecs are built."""
INTERVALS = 4
"""Timed runs of steps, of which the median counts."""
_START = 300.0
_STEP = 120.0
"""Timeouts in seconds, for startup and per step: a large model over a slow link takes long."""


@dataclass(frozen=True)
class StepTime:
    """What a step of one method takes."""

    method: str
    seconds: tuple[float, ...]
    """Of a step, in each interval."""
    sent: float
    """Bytes that a rank sends per step: by its interface, or calculated if links are not shaped."""
    codec_seconds: float
    """That a rank encodes, adds and decodes per step; 0 of methods that do not say."""
    values: int
    """Of the gradient."""
    compute: float
    """Seconds of a step in which nothing is exchanged, while the other ranks compute as well."""

    @property
    def median(self) -> float:
        return median(self.seconds)


def step_times(network: Network, workload: str, methods: Sequence[str], *, steps: int, seed: int = 0) -> list[StepTime]:
    """Time steps of every method, one method after the other in the same processes.

    `steps` are those of an interval, between two barriers; there are `INTERVALS` of them.
    """
    find(workload)
    whole_number("steps", steps, 1, 10_000)
    check_network(methods, network)
    lines: list[dict[str, Any]] = []
    interface = network.hosts[0].interface if network.shaped else ""
    timeout = _START + _STEP * (WARMUP + INTERVALS * steps) * (len(methods) + 1)
    arguments = [workload, ",".join(methods), str(steps), str(seed), interface]
    launch(network, "sumwire.lab.step_times", arguments, on_line=lines.append, timeout=timeout)
    alone, *found = lines
    return [StepTime(**line | {"seconds": tuple(line["seconds"])} | alone) for line in found]


def _measure(workload: str, method: str | None, steps: int, seed: int, interface: str | None) -> dict[str, Any]:
    """Fields of `StepTime`, but for `compute`; nothing is exchanged without a method."""
    task = find(workload)
    data = task.load(seed)
    model = seeded(lambda: task.model(data), seed)
    wrapped = Wrapped(model, lambda: 0.0) if method is None else wrap(method, model, Place(seed=seed))
    total = WARMUP + INTERVALS * steps
    trainer = Trainer(task, data, wrapped, own_batches(len(data.inputs), task.batch, seed), steps=total)
    for _ in range(WARMUP):
        trainer.step()
        # Both say what was new since they were last asked.
        wrapped.step_bytes(), wrapped.codec_seconds()
    seconds: list[float] = []
    calculated: list[float] = []
    codec: list[float] = []
    clock = Clock(interface)
    for _ in range(INTERVALS):
        before = clock.seconds
        clock.start()
        for _ in range(steps):
            trainer.step()
            calculated.append(wrapped.step_bytes())
            codec.append(wrapped.codec_seconds())
        clock.stop()
        seconds.append((clock.seconds - before) / steps)
    wrapped.close()
    sent = clock.sent / (INTERVALS * steps) if interface else fmean(calculated)
    means = torch.tensor([sent, fmean(codec)], dtype=torch.float64)
    dist.all_reduce(means)
    sent, spent = (means / dist.get_world_size()).tolist()
    values = sum(parameter.numel() for parameter in wrapped.bare.parameters())
    return {"method": method, "seconds": seconds, "sent": sent, "codec_seconds": spent, "values": values}


def main(workload: str, methods: str, steps: str, seed: str, interface: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    names = methods.split(",")
    # Warm up: one-time work (connections, imports, oneDNN's choices) must not count against the first method.
    _measure(workload, names[0], 1, int(seed), interface or None)
    alone = _measure(workload, None, int(steps), int(seed), None)
    if dist.get_rank() == 0:
        report(compute=median(alone["seconds"]))
    for name in names:
        found = _measure(workload, name, int(steps), int(seed), interface or None)
        if dist.get_rank() == 0:
            report(**found)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # Sometimes a torch thread releases a Python object while the interpreter shuts down, which raises SIGABRT.
    os._exit(0)
