"""What each of the two ranks does that `calibrate` starts: CPU time of kernels and of collectives.

Both do the same at the same time, because the ranks of a host share its memory's bandwidth, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from statistics import median
from time import process_time

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.duplicate import duplicate
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.residual import Residual
from sumwire.lab.launch import report
from sumwire.train.options import BITS, ENERGY

WORKERS = 4
"""That codecs are built for; speeds hardly depend on it."""
SOME = 5
"""How many times as often what takes a few milliseconds is repeated."""
FEW = 1 << 17
"""Values of small models, whose rounds and steps have costs beyond those of values."""
LAYER = 64
MESSAGE = 1 << 20
"""Bytes from rank to rank: about as many as of a bucket in a few bits."""


def kernel_costs(codec: Lattice, values: int, repeats: int) -> dict[str, float]:
    """Nanoseconds per value of each verb, with buffers reused; and of a copy."""
    x = noise(values)
    terms = codec.propose(x)
    payloads = [codec.encode(x, terms, rank=rank, round_id=0) for rank in range(codec.workers)]
    total, narrow = codec.add(payloads), codec.add(payloads).narrow()
    data, lanes, mean = np.empty_like(payloads[0].data), np.empty_like(total.lanes), np.empty_like(x)
    costs = {
        "propose": cpu(lambda: codec.propose(x), repeats),
        # Joining is idempotent: the terms are equal, but their widths must be derived again, as in every round.
        "encode": cpu(lambda: codec.encode(x, terms | terms, rank=0, round_id=0, out=data), repeats),
        "add": cpu(lambda: codec.add(payloads, out=lanes), repeats) / codec.workers,
        "narrow": cpu(total.narrow, repeats),
        "decode": cpu(lambda: codec.decode(narrow, out=mean), repeats),
        "copy": cpu(lambda: np.copyto(mean, x), repeats),
    }
    return {name: 1e9 * seconds / values for name, seconds in costs.items()}


def residual_cost(values: int, repeats: int) -> float:
    """Nanoseconds per value of proposing and encoding with error feedback."""
    x = noise(values)
    residual = Residual(Lattice(WORKERS, BITS, energy=ENERGY, feedback=True))

    def encode() -> None:
        residual.encode(residual.codec.propose(residual.correct(x)), rank=0, round_id=0)

    return 1e9 * cpu(encode, repeats) / values


def noise(values: int) -> NDArray[np.float32]:
    """Whose scale changes now and then, as that of layers does."""
    rng = np.random.default_rng(0)
    scales = np.exp(rng.standard_normal(-(-values // 4096), np.float32)).repeat(4096)[:values]
    return np.asarray(scales * rng.standard_normal(values, np.float32))


def collective_costs(values: int, repeats: int) -> dict[str, float]:
    """On a rank of two: nanoseconds of CPU, per value of all-reduces and per byte of an all-to-all of our own."""
    x = torch.randn(values, generator=torch.Generator().manual_seed(dist.get_rank()))
    ranks = dist.get_world_size()
    (communicator,) = duplicate(None, 1, None)
    outbox, inbox, each = np.ones(ranks * MESSAGE, np.uint8), np.empty(ranks * MESSAGE, np.uint8), [MESSAGE] * ranks

    def messages() -> int:
        return sum(communicator.all_to_all(outbox, each, inbox, each) for _ in range(-(-4 * values // MESSAGE)))

    def halves(kind: torch.dtype) -> None:
        half = x.to(kind).div_(ranks)
        dist.all_reduce(half)
        x.copy_(half)

    sent = messages()
    costs = {
        "fp32": cpu(lambda: dist.all_reduce(x.mul_(0.5)), repeats) / values,
        "bf16": cpu(partial(halves, torch.bfloat16), repeats) / values,
        "fp16": cpu(partial(halves, torch.float16), repeats) / values,
        "cast": cpu(lambda: x.copy_(x.to(torch.float16).div_(ranks)), repeats) / values,
        "exchange": cpu(messages, repeats) / sent,
    }
    communicator.close()
    return {name: 1e9 * seconds for name, seconds in costs.items()}


def round_cost(repeats: int) -> dict[str, float]:
    """Nanoseconds of a round with few values, and its messages."""
    ranks = dist.get_world_size()
    codec = Lattice(ranks, BITS, energy=ENERGY)
    group, numbers, x = Group(codec), count(), noise(FEW)
    in_flight = RoundsInFlight(group)

    def average() -> None:
        steps = Round(group, x, codec, round_id=next(numbers), out=x, workspace=Workspace())
        in_flight.submit(steps).result()

    taken = cpu(average, SOME * repeats)
    in_flight.close()
    group.close()
    return {"round": 1e9 * taken, "round_messages": 4 * (ranks - 1)}


def ddp_cost(repeats: int) -> dict[str, float]:
    """Nanoseconds of a step of a small model in DDP, beyond those without it and of the all-reduce."""
    model = torch.nn.Sequential(*(torch.nn.Linear(LAYER, LAYER, bias=False) for _ in range(FEW // LAYER**2)))
    x = torch.ones(1, LAYER)

    def step(trained: torch.nn.Module) -> None:
        trained(x).sum().backward()
        trained.zero_grad()

    own = cpu(lambda: step(model), SOME * repeats)
    together = DistributedDataParallel(model)
    step(together)  # after which DDP lays out buckets anew
    flat = torch.ones(FEW)
    taken, sent = cpu(lambda: step(together), SOME * repeats), cpu(lambda: dist.all_reduce(flat), SOME * repeats)
    return {"ddp": 1e9 * max(0.0, taken - own - sent)}


def cpu(work: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds of all threads of this process, after one call to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        start = process_time()
        work()
        taken.append(process_time() - start)
    return median(taken)


def measure(values: int, repeats: int) -> dict[str, float]:
    """All costs, at this rank of an initialized group."""
    costs = collective_costs(values, repeats)
    dist.barrier()
    costs |= round_cost(repeats)
    costs |= ddp_cost(repeats)
    dist.barrier()
    kernels = kernel_costs(Lattice(WORKERS, BITS, energy=ENERGY), values, repeats)
    return costs | kernels | {"with_residual": residual_cost(values, repeats)}


def main(what: str, values: int, repeats: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    costs = measure(values, repeats) if what == "all" else round_cost(repeats)
    if dist.get_rank() == 0:
        report(**costs)
    dist.barrier()
    # torch's threads may abort a process that ends while they still let go of tensors.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
