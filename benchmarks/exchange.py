"""Time of one gradient exchange, plain and compressed, on links of several rates.

    python -m benchmarks.exchange --rates 100Mbit,1Gbit,10Gbit,loopback --runs 7
    python -m benchmarks.exchange --rates 100Mbit --runs 5 --switch

Ranks, one process each, have the gradients of a model that has ResNet-50's parameters (25.6M, 161 tensors).
"alone" averages them as flat buckets of 25 MB, all submitted at once; "bytes-4" only sends what sumwire-4 would, so
it is what gloo leaves to gain. "DDP" is the backward pass of a wrapped model
with default buckets whose gradients are there already: filling buckets, averaging them, handing gradients out. All
contenders run in turns in the same processes; a time is that of the slowest rank. With --switch, hosts are joined
through a switch that adds packets in its kernel (TC), for the contender "switch-4"; that needs root.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from math import ceil
from statistics import median
from threading import Thread
from time import perf_counter, process_time
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.connect import connect
from sumwire.aggregate.group.communicator import GATHER
from sumwire.aggregate.group.duplicate import duplicate
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.lattice.codec import Lattice
from sumwire.lab.launch import launch, report
from sumwire.lab.links import format_rate, links
from sumwire.lab.record import Record, add_option, spread
from sumwire.lab.switched import switched_links
from sumwire.train import attach
from sumwire.train.options import ENERGY, CodecOptions, choose_codec

BUCKET = 25 * 1024 * 1024 // 4
RATES = {"100Mbit": 100e6, "1Gbit": 1e9, "10Gbit": 10e9, "loopback": None}


def resnet50() -> list[tuple[int, ...]]:
    """Shapes of its parameters, in order."""
    shapes: list[tuple[int, ...]] = []

    def conv(inputs: int, outputs: int, kernel: int) -> None:
        shapes.extend([(outputs, inputs, kernel, kernel), (outputs,), (outputs,)])

    conv(3, 64, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            conv(inputs, width, 1)
            conv(width, width, 3)
            conv(width, 4 * width, 1)
            if block == 0:
                conv(inputs, 4 * width, 1)
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


class Given(torch.autograd.Function):
    """Backward hands out gradients that are there already."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return None, *ctx.gradients


class Model(torch.nn.Module):
    def __init__(self, gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.gradients = gradients
        self.tensors = torch.nn.ParameterList(torch.zeros_like(gradient) for gradient in gradients)

    def forward(self) -> torch.Tensor:
        result: torch.Tensor = Given.apply(self.gradients, *self.tensors)  # type: ignore[no-untyped-call]
        return result


def gradients(rank: int) -> list[torch.Tensor]:
    """Noise whose scale differs from tensor to tensor and along each, as that of real layers does."""
    generator, found = torch.Generator().manual_seed(rank), []
    for shape in resnet50():
        noise = torch.randn(shape, generator=generator)
        scale = torch.exp(torch.randn(shape[0], generator=generator) - 3)
        found.append(noise * scale.view(-1, *[1] * (len(shape) - 1)))
    return found


class Contender(NamedTuple):
    run: Callable[[], object]
    sent: Callable[[], int | None] = lambda: None
    """Bytes of a rank in the last run."""
    statistics: Callable[[], Statistics | None] = lambda: None


def alone(given: list[torch.Tensor], switch: Sequence[str], name: str) -> Contender:
    """Buckets averaged without DDP around them. `switch`: its address and token."""
    flat = torch.cat([gradient.reshape(-1) for gradient in reversed(given)])
    buckets, ranks = flat.split(BUCKET), dist.get_world_size()  # type: ignore[no-untyped-call]
    if name == "fp32":

        def plain() -> None:
            works = [dist.all_reduce(bucket.mul_(1 / ranks), async_op=True) for bucket in buckets]
            for work in works:
                work.wait()

        return Contender(plain, lambda: ring(flat.nbytes))
    if name == "fp16":

        def half() -> None:
            halves = [bucket.half().div_(ranks) for bucket in buckets]
            works = [dist.all_reduce(each, async_op=True) for each in halves]
            for work, each, bucket in zip(works, halves, buckets, strict=True):
                work.wait()
                bucket.copy_(each)

        return Contender(half, lambda: ring(flat.nbytes // 2))
    options = {"seed": 0} | options_of(name)
    codec = choose_codec(ranks, options.pop("bits", None), cast(CodecOptions, options))
    group: Aggregator
    if name in SWITCHED:
        rank = dist.get_rank()
        group = connect(switch[0], rank=rank, workers=ranks, token=switch[1], codec=codec).open()
    else:
        group = Group(codec)
    in_flight, numbers, last = RoundsInFlight(group), count(), [Statistics()]

    def coded() -> None:
        last[0] = Statistics()
        works = [Workspace(statistics=last[0]) for _ in buckets]
        rounds = [
            Round(group, bucket, codec, round_id=next(numbers), out=bucket, workspace=work)
            for bucket, work in zip(buckets, works, strict=True)
        ]
        for future in [in_flight.submit(each) for each in rounds]:
            future.result()

    # Through a switch less goes up than comes down: bytes sent would not give the wire's limit.
    return Contender(coded, lambda: None if name in SWITCHED else last[0].sent, lambda: last[0])


def messages(given: list[torch.Tensor], _: Sequence[str]) -> Contender:
    """What sumwire-4 sends for its buckets, without its codec: all-to-alls beside all-gathers."""
    ranks = dist.get_world_size()
    buckets = ceil(sum(gradient.numel() for gradient in given) / BUCKET)
    up, down, _terms = Lattice(ranks, bits=4).expected_bits(BUCKET) or (0, 0, 0)
    shard, summed = (round(bits / 8 / ranks) for bits in (up, down))
    outbox, inbox = np.zeros((2, ranks * shard), np.uint8)
    mine, sums = np.zeros(summed, np.uint8), np.zeros(ranks * summed, np.uint8)
    (communicator,) = duplicate(None, 1, None)
    sent = {"up": 0, "down": 0}

    def gather() -> None:
        for _ in range(buckets):
            sent["down"] += communicator.all_gather_varied(mine, [summed] * ranks, sums, tag=GATHER)

    def run() -> None:
        sent.update(up=0, down=0)
        thread = Thread(target=gather)
        thread.start()
        for _ in range(buckets):
            sent["up"] += communicator.all_to_all(outbox, [shard] * ranks, inbox, [shard] * ranks)
        thread.join()

    return Contender(run, lambda: sum(sent.values()))


def in_ddp(given: list[torch.Tensor], _: Sequence[str], name: str) -> Contender:
    # PowerSGD gets one bucket: with several in flight it waits for collectives inside callbacks and hangs on gloo.
    options: Any = {"bucket_cap_mb": 1000} if name.startswith("powersgd") else {}
    model = DistributedDataParallel(Model(given), gradient_as_bucket_view=True, **options)
    size = sum(gradient.nbytes for gradient in given)

    def run() -> None:
        model().backward()

    if name in SUMWIRE:
        state = attach(model, warmup=1, fallback=False, sample_every=0, **options_of(name))
        return Contender(run, lambda: state.statistics.sent, lambda: state.statistics)
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return Contender(run, lambda: ring(size // 2))
    if name.startswith("powersgd"):
        rank = int(name.partition("-")[2])
        powersgd = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(powersgd, powerSGD_hook.powerSGD_hook)
        return Contender(run)
    return Contender(run, lambda: ring(size))


SUMWIRE: dict[str, dict[str, Any]] = {
    "sumwire-4": {"bits": 4},
    "sumwire-2": {"bits": 2},
    "sumwire-12-in-all": {"total_bits": 12},
    "sumwire-4-feedback": {"bits": 4, "feedback": True},
    "sumwire-4-down-5": {"codec": partial(Lattice, bits=4, down_bits=5, energy=ENERGY)},
}
SWITCHED = {"switch-4": {"bits": 4}}
"""Those that need a switch. One at a time: a job in the network serves one link per worker."""
ALONE = ("fp32", "fp16", "sumwire-4", "sumwire-2", "sumwire-4-down-5", *SWITCHED)
CONTENDERS: dict[str, Callable[[list[torch.Tensor], Sequence[str]], Contender]] = {
    **{f"alone: {name}": partial(alone, name=name) for name in ALONE},
    "alone: bytes-4": messages,
    **{f"DDP: {name}": partial(in_ddp, name=name) for name in ("fp32", "fp16", "powersgd-1", *SUMWIRE)},
}


def options_of(name: str) -> dict[str, Any]:
    """Of `attach`; a codec is built for the ranks there are."""
    return {
        key: value(dist.get_world_size()) if callable(value) else value
        for key, value in (SUMWIRE | SWITCHED)[name].items()
    }


def worker(runs: int, chosen: str, switch: Sequence[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    given = gradients(dist.get_rank())
    contenders = {
        name: build(given, switch)
        for name, build in CONTENDERS.items()
        if re.search(chosen, name) and (switch or name.partition(": ")[2] not in SWITCHED)
    }
    # Two rounds to warm up: DDP rebuilds its buckets, buffers grow, TCP finds its window.
    for run in range(-2, runs):
        found = {name: clock(contender.run) for name, contender in contenders.items()}
        if dist.get_rank() == 0 and run >= 0:
            report(seconds={n: f[0] for n, f in found.items()}, cpu={n: f[1] for n, f in found.items()})
    if dist.get_rank() == 0:
        parts = {name: s.seconds for name, c in contenders.items() if (s := c.statistics()) is not None}
        sent, size = {name: c.sent() for name, c in contenders.items()}, sum(gradient.numel() for gradient in given)
        report(size=size, plain=ring(4 * size), sent=sent, parts=parts)
    dist.barrier()
    # torch's threads may abort a process that ends while they still let go of tensors.
    os._exit(0)


def ring(size: int) -> int:
    ranks = dist.get_world_size()
    return 2 * size * (ranks - 1) // ranks


def clock(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the slowest rank, and of CPU of all threads of this one."""
    dist.barrier()
    start, cpu = perf_counter(), process_time()
    work()
    taken, spent = torch.tensor(perf_counter() - start), process_time() - cpu
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return taken.item(), spent


Runs = list[dict[str, dict[str, float]]]  # of each run: "seconds" and "cpu" of every contender


def measure(rate: str, ranks: int, runs: int, chosen: str, switch: bool) -> tuple[str, Runs, dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    with (switched_links if switch else links)(ranks, RATES[rate]) as network:
        arguments = ["--worker", "--runs", str(runs), "--contenders", chosen]
        arguments += ["--at", network.aggregator, network.token] if switch else []
        launch(network, "benchmarks.exchange", arguments, on_line=lines.append, timeout=3600)
        note = network.note
    return note, [line for line in lines if "seconds" in line], lines[-1]


def figures(rate: str, measured: Runs, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is recorded of each contender; None where it was not measured."""
    bits, runs = RATES[rate], [line["seconds"] for line in measured]
    for name in runs[0]:
        where, sent, parts = name.partition(":")[0], facts["sent"][name], facts["parts"].get(name)
        ms = spread([1e3 * run[name] for run in runs])
        limit = None if sent is None or bits is None else 1e3 * 8 * sent / bits
        line: dict[str, Any] = {"contender": name, "runs": len(runs), "ms": ms}
        for yardstick in ("fp32", "fp16"):
            # Of each run, because slow spells of the machine affect both.
            ratios = [run[its] / run[name] for run in runs if (its := f"{where}: {yardstick}") in run]
            line[f"{yardstick}_over_it"] = median(ratios) if ratios else None
        line["bits_per_value"] = None if sent is None else 8 * sent / facts["size"]
        line["wire_limit_ms"], line["over_limit"] = limit, None if limit is None else ms["median"] / limit
        line["cpu_ms_per_rank"] = 1e3 * median(each["cpu"][name] for each in measured)
        if parts is not None:
            codec = sum(seconds for kind, seconds in parts.items() if kind != "exchange")
            line["last_run_rank0_ms"] = {kind: 1e3 * seconds for kind, seconds in parts.items()}
            if sent is not None:
                line["break_even_gbit"] = 8 * (facts["plain"] - sent) / codec / 1e9
        yield line


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield "| | ms | lowest - highest | fp32 / it | fp16 / it | bits per value | wire limit, ms | x limit |"
    yield "|---|---|---|---|---|---|---|---|"
    forms = {"fp32_over_it": ".2f", "fp16_over_it": ".2f", "bits_per_value": ".2f", "wire_limit_ms": ".0f"}
    for line in lines:
        ms = line["ms"]
        cells = [line["contender"], f"{ms['median']:.0f}", f"{ms['lowest']:.0f} - {ms['highest']:.0f}"]
        for name, form in (forms | {"over_limit": ".2f"}).items():
            cells.append("" if line[name] is None else f"{line[name]:{form}}")
        yield "| " + " | ".join(cells) + " |"
    yield ""
    cpu = ", ".join(f"{line['contender']} {line['cpu_ms_per_rank']:.0f}" for line in lines)
    yield f"- CPU of rank 0, ms per run, median: {cpu}"
    for line in lines:
        if parts := line.get("last_run_rank0_ms"):
            times = ", ".join(f"{kind} {ms:.0f} ms" for kind, ms in parts.items())
            even = f"; break-even at {line['break_even_gbit']:.1f} Gbit/s" if "break_even_gbit" in line else ""
            yield f"- {line['contender']}, rank 0, last run: {times} (they overlap){even}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default=",".join(RATES), help=f"some of {', '.join(RATES)}")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--contenders", default="", help="those in whose names this regular expression is found")
    parser.add_argument("--switch", action="store_true", help="join hosts through a switch that adds; needs root")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--at", nargs=2, default=(), help=argparse.SUPPRESS)
    add_option(parser)
    given = parser.parse_args()
    if given.worker:
        worker(given.runs, given.contenders, given.at)
        return
    record = Record(given.json, seed=0)
    for rate in given.rates.split(","):
        note, runs, facts = measure(rate, given.ranks, given.runs, given.contenders, given.switch)
        print(f"\n### {rate}, {given.ranks} ranks\n\n{note}; {facts['size']:,} values, median of {given.runs} runs\n")
        lines, bits = list(figures(rate, runs, facts)), RATES[rate]
        print("\n".join(table(lines)), flush=True)
        about = {"link": rate if bits is None else format_rate(bits), "ranks": given.ranks, "values": facts["size"]}
        for line in lines:
            cpu = line.pop("cpu_ms_per_rank")
            record.add(section="main", **about, **line)
            record.add(section="cpu", **about, contender=line["contender"], ms=line["ms"], cpu_ms_per_rank=cpu)


if __name__ == "__main__":
    main()
