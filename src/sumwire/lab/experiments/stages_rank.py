"""What each rank does that experiment "stages" starts: steps of a model, whose gradient is averaged; time by stage."""

from __future__ import annotations

import os
import sys
from statistics import fmean
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sumwire import Lattice
from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.connect import connect
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from sumwire.lab.launch import report
from sumwire.train.options import ENERGY

LAYERS = 4
BATCH = 8
WARMUP = 2
BITS = 4
WHOLE = "whole step"


def build(width: int) -> nn.Module:
    """A perceptron with 4 width**2 weights."""
    return nn.Sequential(*(part for _ in range(LAYERS) for part in (nn.Linear(width, width, bias=False), nn.ReLU())))


def gradient(model: nn.Module, inputs: Tensor) -> Tensor:
    parts = torch.autograd.grad(model(inputs).square().mean(), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


def measure(width: int, rounds: int, codec: Lattice, aggregator: Aggregator | None) -> dict[str, float]:
    """Milliseconds of each stage of a step; without an aggregator, of an all-reduce in fp32."""
    model, inputs = build(width), torch.randn(BATCH, width)
    times: dict[str, list[float]] = {}
    for step in range(-WARMUP, rounds):
        begin = perf_counter()
        x = gradient(model, inputs)
        taken = {"compute": perf_counter() - begin}
        # Waiting for a rank that computes longer is no part of an exchange.
        dist.barrier()
        begin = perf_counter()
        if aggregator is None:
            dist.all_reduce(x)
            taken["exchange"] = perf_counter() - begin
        else:
            workspace = Workspace()
            Round(aggregator, x, codec, round_id=None, workspace=workspace, out=x).run()
            taken |= {kind: seconds for kind, seconds in workspace.statistics.seconds.items() if seconds}
        taken[WHOLE] = taken["compute"] + perf_counter() - begin
        if step >= 0:
            for stage, seconds in taken.items():
                times.setdefault(stage, []).append(1e3 * seconds)
    return {stage: fmean(each) for stage, each in times.items()}


def main(transport: str, address: str, token: str, width: str, rounds: str) -> None:
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    codec = Lattice(ranks, BITS, energy=ENERGY)
    aggregator: Aggregator | None = None
    if transport == "process group":
        aggregator = Group(codec)
    elif transport != "fp32 all-reduce":
        aggregator = connect(address, rank=rank, workers=ranks, **({"token": token} if token else {}))
        codec = aggregator.prepare(codec)  # type: ignore[assignment]
    report(rank=rank, stages=measure(int(width), int(rounds), codec, aggregator))
    dist.barrier()
    if aggregator is not None:
        aggregator.close()
    dist.barrier()
    # torch's threads may abort a process that ends while they still let go of tensors.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
