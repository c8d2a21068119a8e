"""Time of one gradient exchange, plain and compressed, on links of several rates.

    python -m benchmarks.exchange --rates 100Mbit,1Gbit,10Gbit,loopback --runs 7

Four ranks, one process each, wrap a model with the parameters of ResNet-50 (25.6M, 161 tensors) in DDP with default
buckets. Its gradients are there already, so that backward is the exchange alone: filling buckets, averaging them,
handing gradients out. All methods run in turns in the same processes; a time is that of the slowest rank.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from sumwire.lab.launch import launch, report
from sumwire.lab.links import links
from sumwire.train import State, attach

RANKS = 4
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
        result: torch.Tensor = Given.apply(self.gradients, *self.tensors)
        return result


def gradients(rank: int) -> list[torch.Tensor]:
    """Noise whose scale differs from tensor to tensor and along each, as that of real layers does."""
    generator = torch.Generator().manual_seed(rank)
    found = []
    for shape in resnet50():
        noise = torch.randn(shape, generator=generator)
        scale = torch.exp(torch.randn(shape[0], generator=generator) - 3)
        found.append(noise * scale.view(-1, *[1] * (len(shape) - 1)))
    return found


def fp16(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def powersgd(model: DistributedDataParallel) -> None:
    # One bucket (see `wrap`): with several under way it waits for collectives inside callbacks and hangs on gloo.
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def sumwire(**options: Any) -> Callable[[DistributedDataParallel], State]:
    return lambda model: attach(model, warmup=1, fallback=False, sample_every=0, **options)


METHODS: dict[str, Callable[[DistributedDataParallel], State | None]] = {
    "fp32": lambda model: None,
    "fp16": fp16,
    "powersgd-1": powersgd,
    "sumwire-4": sumwire(bits=4),
    "sumwire-4-feedback": sumwire(bits=4, feedback=True),
    "sumwire-12-in-all": sumwire(total_bits=12),
    "sumwire-2-feedback": sumwire(bits=2, feedback=True),
}


def wrap(method: str, given: list[torch.Tensor]) -> tuple[DistributedDataParallel, State | None]:
    options: Any = {"bucket_cap_mb": 1000} if "powersgd" in method else {}
    model = DistributedDataParallel(Model(given), gradient_as_bucket_view=True, **options)
    return model, METHODS[method](model)


def worker(methods: list[str], runs: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    given = gradients(dist.get_rank())
    size = sum(gradient.numel() for gradient in given)
    raw = torch.cat([gradient.reshape(-1) for gradient in given])
    models = {method: wrap(method, given) for method in methods}
    # Two rounds to warm up: DDP rebuilds its buckets, buffers grow, TCP finds its window.
    for run in range(-2, runs):
        seconds = {"all_reduce": clock(lambda: dist.all_reduce(raw.mul_(0.25)))}
        seconds |= {method: clock(lambda m=model: m().backward()) for method, (model, _) in models.items()}
        if dist.get_rank() == 0 and run >= 0:
            report(seconds=seconds)
    sent = {"all_reduce": ring(4 * size), "fp32": ring(4 * size), "fp16": ring(2 * size)}
    parts: dict[str, Any] = {}
    for method, (_, state) in models.items():
        if state is not None:
            sent[method] = state.meter.sent
            parts[method] = state.meter.seconds
    if dist.get_rank() == 0:
        report(size=size, sent=sent, parts=parts)
    dist.destroy_process_group()


def ring(size: int) -> int:
    return 2 * size * (RANKS - 1) // RANKS


def clock(work: Callable[[], object]) -> float:
    """Seconds of the slowest rank."""
    dist.barrier()
    start = perf_counter()
    work()
    taken = torch.tensor(perf_counter() - start)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return taken.item()


def measure(rate: str, methods: list[str], runs: int) -> tuple[str, list[dict[str, float]], dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    with links(RANKS, RATES[rate]) as network:
        arguments = ["--worker", "--methods", ",".join(methods), "--runs", str(runs)]
        launch(network, "benchmarks.exchange", arguments, on_line=lines.append, timeout=3600)
        note = network.note
    return note, [line["seconds"] for line in lines if "seconds" in line], lines[-1]


def table(rate: str, runs: list[dict[str, float]], facts: dict[str, Any]) -> Iterator[str]:
    bits = RATES[rate]
    middle = {method: median(run[method] for run in runs) for method in runs[0]}
    yield "| method | ms | lowest - highest | fp32 / it | fp16 / it | bits a value | wire limit, ms | x limit |"
    yield "|---|---|---|---|---|---|---|---|"
    for method, seconds in middle.items():
        every = [1e3 * run[method] for run in runs]
        cells = [method, f"{1e3 * seconds:.0f}", f"{min(every):.0f} - {max(every):.0f}"]
        for yardstick in ("fp32", "fp16"):
            cells.append(f"{middle[yardstick] / seconds:.2f}" if yardstick in middle else "")
        sent = facts["sent"].get(method)
        cells.append("" if sent is None else f"{8 * sent / facts['size']:.2f}")
        limit = None if sent is None or bits is None else 8 * sent / bits
        cells += ["", ""] if limit is None else [f"{1e3 * limit:.0f}", f"{seconds / limit:.2f}"]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    for method, parts in facts["parts"].items():
        codec = sum(seconds for kind, seconds in parts.items() if kind != "exchange")
        saved = 8 * (facts["sent"].get("fp32", 0) - facts["sent"][method])
        times = ", ".join(f"{kind} {1e3 * seconds:.0f} ms" for kind, seconds in parts.items())
        yield f"- {method}, rank 0, last step: {times} (they overlap); break-even at {saved / codec / 1e9:.1f} Gbit/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default=",".join(RATES), help=f"some of {', '.join(RATES)}")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"some of {', '.join(METHODS)}")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    methods = given.methods.split(",")
    if given.worker:
        worker(methods, given.runs)
        return
    for rate in given.rates.split(","):
        note, runs, facts = measure(rate, methods, given.runs)
        print(f"\n### {rate}\n\n{note}; {facts['size']:,} values, median of {given.runs} runs\n")
        print("\n".join(table(rate, runs, facts)), flush=True)


if __name__ == "__main__":
    main()
