"""What each of the ranks does that `calibrate` starts: CPU time of kernels, of collectives and of steps in DDP.

All do the same at the same time, because the ranks of a host share its memory's bandwidth, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from statistics import median
from time import process_time

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from sumwire.aggregate.group.duplicate import duplicate
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.residual import Residual
from sumwire.lab.launch import report
from sumwire.train import attach
from sumwire.train.options import BITS, ENERGY

WORKERS = 4
"""That codecs are built for; speeds hardly depend on it."""
MORE_OFTEN = 5
"""How many times as often what takes a few milliseconds is repeated."""
FEW_VALUES = 1 << 17
"""Values of a small model, whose steps cost more than its values and bytes."""
LAYER = 64
WARM = 4
"""Steps in which DDP lays out its buckets, and codecs are built."""
KINDS = ("plain", "coded")
COPIES = 4
"""How many times as many values are copied as others take, so that no cache holds them."""
MESSAGE = 1 << 20
"""Bytes from rank to rank: about as many as of a bucket in a few bits."""


def kernel_costs(codec: Lattice, values: int, repeats: int) -> dict[str, float]:
    """Nanoseconds per value of each verb, with buffers reused; and of a copy."""
    x = noise(values)
    terms = codec.propose(x)
    payloads = [codec.encode(x, terms, rank=rank, round_id=0) for rank in range(codec.workers)]
    total, narrow = codec.add(payloads), codec.add(payloads).narrow()
    here, there = np.zeros((2, COPIES * values), np.float32)
    data, lanes, mean = np.empty_like(payloads[0].data), np.empty_like(total.lanes), np.empty_like(x)
    costs = {
        "propose": cpu(lambda: codec.propose(x), repeats),
        # Joining is idempotent: the terms are equal, but their widths must be derived again, as in every round.
        "encode": cpu(lambda: codec.encode(x, terms | terms, rank=0, round_id=0, out=data), repeats),
        "add": cpu(lambda: codec.add(payloads, out=lanes), repeats) / codec.workers,
        "narrow": cpu(total.narrow, repeats),
        "decode": cpu(lambda: codec.decode(narrow, out=mean), repeats),
        "copy": cpu(lambda: np.copyto(there, here), repeats) / COPIES,
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


def step_costs(repeats: int) -> dict[str, float]:
    """Nanoseconds of exchanging the gradients of a small model in DDP: by its own all-reduce, and compressed."""
    model = torch.nn.Sequential(*(torch.nn.Linear(LAYER, LAYER, bias=False) for _ in range(FEW_VALUES // LAYER**2)))
    x = torch.ones(1, LAYER)

    def step(trained: torch.nn.Module) -> None:
        trained(x).sum().backward()
        trained.zero_grad()

    own = cpu(lambda: step(model), MORE_OFTEN * repeats)
    plain = DistributedDataParallel(model)
    coded = DistributedDataParallel(deepcopy(model))
    state = attach(coded, bits=BITS, fallback=False)
    for _ in range(WARM):
        step(plain)
        step(coded)
    costs = {
        name: 1e9 * (cpu(partial(step, each), MORE_OFTEN * repeats) - own)
        for name, each in zip(KINDS, (plain, coded), strict=True)
    }
    state.close()
    return costs


def cpu(work: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds of all threads of this process, after one call to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        start = process_time()
        work()
        taken.append(process_time() - start)
    return median(taken)


def measure(what: str, values: int, repeats: int) -> dict[str, float]:
    """At this rank of an initialized group: "costs" of kernels and collectives, or those of "steps"."""
    if what == "steps":
        return step_costs(repeats)
    costs = collective_costs(values, repeats)
    dist.barrier()
    kernels = kernel_costs(Lattice(WORKERS, BITS, energy=ENERGY), values, repeats)
    return costs | kernels | {"with_residual": residual_cost(values, repeats)}


def main(what: str, values: int, repeats: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    costs = measure(what, values, repeats)
    if dist.get_rank() == 0:
        report(**costs)
    dist.barrier()
    # torch's threads may abort a process that ends while they still let go of tensors.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
