"""Training steps of a model with mostly zero gradients, timed for several methods of exchanging them.

Ranks, one process each, train the model in DDP with every method in turn, from the same weights on the same batches. A
step includes forward, backward, exchange and plain SGD; its time is that of the slowest rank. "compute only" is the
same step without an exchange. Bytes are counted by the interface of a rank, including headers; on unshaped links they
are not counted.

`compare_steps` launches this module on every rank.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from sumwire.errors import ConfigError
from sumwire.lab.comparison import identical, sent_bytes
from sumwire.lab.launch import launch, report
from sumwire.lab.links import Network
from sumwire.lab.record import spread
from sumwire.lab.workloads import Data, Workload, find
from sumwire.lab.workloads.reproducible import draw_batches, seeded
from sumwire.train import attach

WARMUP = 3
"""Steps that are not timed: DDP rebuilds its buckets, buffers grow, TCP adapts its window."""

RATE = 0.1
COMPUTE = "compute only"
SUMWIRE: dict[str, dict[str, Any]] = {
    "sumwire-rows": {"codec": "sparse"},
    "sumwire-sparse": {"codec": "sparse"},
    "sumwire-auto": {"codec": "auto"},
    "sumwire-4": {"bits": 4},
}
EXACT = ("sumwire-rows", "sumwire-sparse")
ROWS = ("torch-sparse", "sumwire-rows")
"""Methods with `nn.Embedding(sparse=True)`. In torch, every rank gathers the rows of all ranks. Both methods also
compute less than the others: gradients and SGD touch only these rows."""
METHODS = ("fp32", "fp16", "torch-sparse", *SUMWIRE)


def methods_of(workload: Workload) -> tuple[str, ...]:
    """Methods that can train it.

    >>> methods_of(find("vgg"))
    ('fp32', 'fp16', 'sumwire-sparse', 'sumwire-auto', 'sumwire-4')
    """
    return tuple(name for name in METHODS if name not in ROWS or hasattr(workload, "sparse"))


class Candidate:
    """The model of one method."""

    def __init__(self, name: str, workload: Workload, data: Data, seed: int) -> None:
        chosen = replace(workload, sparse=True) if name in ROWS else workload  # type: ignore[call-arg]
        self.workload, self.data = workload, data
        self.model = DistributedDataParallel(seeded(partial(chosen.model, data), seed), gradient_as_bucket_view=True)
        self.optimizer = SGD(self.model.parameters(), lr=RATE)
        self.context: Callable[[], Any] = self.model.no_sync if name == COMPUTE else nullcontext
        if name == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if name in SUMWIRE:
            # This measures compression, so it must not fall back to all-reduce on fast links.
            attach(self.model, warmup=1, fallback=False, sample_every=0, **SUMWIRE[name])
        self.loss = 0.0

    def step(self, rows: Tensor) -> None:
        self.optimizer.zero_grad()
        with self.context():
            loss = self.workload.loss(self.model, self.data.inputs[rows], self.data.targets[rows])
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.loss = loss.item()


class Step(NamedTuple):
    """A step of one method: seconds of the slowest rank, and mean bytes over ranks."""

    seconds: float
    sent: float


@dataclass(frozen=True)
class Compared:
    """What ranks reported."""

    runs: Sequence[dict[str, Step]]
    """Of each step, by method."""
    parameters: int
    own: float
    """Density of a rank's last gradient, the mean over ranks; and of their union."""
    union: float
    identical: dict[str, bool]
    """Whether all ranks ended with equal bits, by method."""
    loss: dict[str, float]

    def figures(self) -> Iterator[dict[str, Any]]:
        """What is recorded of each method; None where it was not measured."""
        runs = self.runs
        for name in runs[0]:
            # Per step, because slow spells of the machine affect both.
            ratios = [run["fp32"].seconds / run[name].seconds for run in runs] if "fp32" in runs[0] else None
            sent = median(run[name].sent for run in runs)
            counted = any(step.sent for run in runs for step in run.values())
            yield {
                "method": name,
                "ms_per_step": spread([1e3 * run[name].seconds for run in runs]),
                "fp32_over_it": ratios and spread(ratios),
                "mb_per_step_and_rank": sent / 1e6 if counted else None,
                "ranks_bit_equal": self.identical.get(name),
                "loss": self.loss[name],
            }


def compare_steps(
    network: Network, workload: Workload, methods: Sequence[str], steps: int, *, seed: int = 0
) -> Compared:
    """Train a registered workload, whose batch may be another, with these methods, on one rank per host."""
    if unknown := set(methods) - set(methods_of(workload)):
        raise ConfigError(
            f"no method {min(unknown)!r} for {workload.name}: choose from {', '.join(methods_of(workload))}"
        )
    settings = {
        "workload": workload.name,
        "batch": workload.batch,
        "methods": list(methods),
        "steps": steps,
        "seed": seed,
        "interface": network.hosts[0].interface if network.shaped else None,
    }
    lines: list[dict[str, Any]] = []
    launch(network, "sumwire.lab.sparse_training", [json.dumps(settings)], on_line=lines.append, timeout=3600)
    *taken, found = lines
    return Compared([{name: Step(*step) for name, step in line["steps"].items()} for line in taken], **found)


def train(workload: Workload, methods: Sequence[str], steps: int, seed: int, interface: str | None) -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = workload.load(seed)
    batches = draw_batches(len(data.inputs), ranks * workload.batch, torch.Generator().manual_seed(seed))
    candidates = {name: Candidate(name, workload, data, seed) for name in (COMPUTE, *methods)}
    for step in range(-WARMUP, steps):
        rows = next(batches)[rank * workload.batch :][: workload.batch]
        taken = {}
        for name, candidate in candidates.items():
            # Dropout and sampled words differ between ranks and are the same for all methods.
            # (torch's generator accepts 32 bits of seed.)
            torch.default_generator.manual_seed(((step + WARMUP) * ranks + rank + 1_000_003 * seed) % 2**32)
            taken[name] = clock(partial(candidate.step, rows), interface)
        if rank == 0 and step >= 0:
            report(steps=taken)
    same = {name: identical(candidate.model.module) for name, candidate in candidates.items() if name != COMPUTE}
    losses = torch.tensor([candidate.loss for candidate in candidates.values()])
    dist.all_reduce(losses)
    own, union = densities(candidates[COMPUTE])
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in candidates[COMPUTE].model.parameters())
        loss = dict(zip(candidates, (losses / ranks).tolist(), strict=True))
        report(parameters=parameters, own=own, union=union, identical=same, loss=loss)
    dist.barrier()
    # torch's threads may abort a process that exits while they release tensors.
    os._exit(0)


def clock(work: Callable[[], object], interface: str | None) -> Step:
    dist.barrier()
    sent, start = sent_bytes(interface), perf_counter()
    work()
    seconds = perf_counter() - start
    # Bytes are read when no rank is waiting for this one anymore.
    dist.barrier()
    taken = torch.tensor([seconds], dtype=torch.float64)
    bytes_ = torch.tensor([sent_bytes(interface) - sent], dtype=torch.float64)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    dist.all_reduce(bytes_)
    return Step(taken.item(), bytes_.item() / dist.get_world_size())


def densities(candidate: Candidate) -> tuple[float, float]:
    """Density of the last gradients: mean over ranks, and of their union."""
    gradients = [parameter.grad for parameter in candidate.model.parameters() if parameter.grad is not None]
    mask = torch.cat([(gradient != 0).flatten() for gradient in gradients]).to(torch.uint8)
    own = mask.float().mean()
    dist.all_reduce(own)
    dist.all_reduce(mask, op=dist.ReduceOp.MAX)
    return own.item() / dist.get_world_size(), mask.float().mean().item()


def main(argument: str) -> None:
    given = json.loads(argument)
    workload = replace(find(given["workload"]), batch=given["batch"])
    train(workload, given["methods"], given["steps"], given["seed"], given["interface"])


if __name__ == "__main__":
    main(*sys.argv[1:])
