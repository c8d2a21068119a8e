"""DiLoCo with compressed pseudo-gradients against fp32: loss, and bytes per token.

    python -m benchmarks.sites --workers 4,8 --every 30,100 --seeds 3

Workers are threads of one process that train a byte-level GPT on Python's documentation, each on its own batches, with
`DiLoCo` over a `Local` aggregator: the same code as across sites, without a network. Seconds of a round on a link are
calculated: bytes by the rate, and four round trips of 50 ms (terms, payloads, and two to compare digests).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sumwire.aggregate.local import Local
from sumwire.codec.lattice.codec import Lattice
from sumwire.lab.record import Record, add_option, spread
from sumwire.lab.workloads import Data, find
from sumwire.lab.workloads.data import CONTEXT
from sumwire.lab.workloads.models import GPT
from sumwire.lab.workloads.reproducible import seeded
from sumwire.train import DiLoCo
from sumwire.train.options import choose_codec

METHODS: dict[str, dict[str, Any]] = {
    "fp32": {"bits": 32},
    "4": {"bits": 4},
    "4+feedback": {"bits": 4, "feedback": True},
    "3+feedback": {"bits": 3, "feedback": True},
    "2": {"bits": 2},
    "2+feedback": {"bits": 2, "feedback": True},
}
RATES = (10e6, 100e6)
ROUND_TRIPS, ROUND_TRIP = 4, 0.05


@dataclass(frozen=True)
class Case:
    """One row of the table, but for its method."""

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


def batches(data: Data, size: int, seed: int, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1_000_003 * seed + rank)
    while True:
        rows = torch.randint(len(data.inputs), (size,), generator=generator)
        yield data.inputs[rows], data.targets[rows]


def train(case: Case, data: Data, seed: int, options: dict[str, Any]) -> tuple[float, float]:
    """Held-out loss of the outer parameters after all steps, and seconds per inner step of one worker."""
    group = Local.create(case.workers, Lattice(case.workers))
    models = [case.model(seed) for _ in group]  # one after another: torch has one generator for all threads

    def work(worker: Local) -> None:
        model = models[worker.rank]
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
        rise = min(20, case.steps // 4)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: min(1, (t + 1) / rise) * 0.5 * (1 + math.cos(math.pi * min(1, t / case.steps)))
        )
        diloco = DiLoCo(model, optimizer, worker, every=case.every, seed=seed, **options)
        mine = batches(data, case.batch, seed, worker.rank)
        try:
            for _ in range(case.steps):
                x, y = next(mine)
                optimizer.zero_grad()
                F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
        except BaseException:
            worker.close()  # or the others would wait
            raise
        diloco.close()

    start = perf_counter()
    with ThreadPoolExecutor(case.workers) as pool:
        list(pool.map(work, group))
    seconds = (perf_counter() - start) / case.steps / case.workers
    with torch.no_grad():
        scores = models[0](data.test_inputs)
        return F.cross_entropy(scores.flatten(0, 1), data.test_targets.flatten()).item(), seconds


def bits_per_value(options: dict[str, Any], case: Case) -> tuple[float, float]:
    """To a server and back, without headers."""
    if options["bits"] == 32:
        return 32.0, 32.0
    expected = choose_codec(case.workers, options["bits"], {"feedback": options.get("feedback")}).expected_bits(
        case.size
    )
    assert expected is not None
    return expected[0] / case.size, expected[1] / case.size


def run(case: Case, names: list[str], seeds: list[int], record: Record) -> None:
    data = find("transformer").load(0)
    print(
        f"{case.workers} workers, H={case.every}, {case.steps} steps, {case.size:,} parameters, batch {case.batch} x "
        f"{CONTEXT} tokens, seeds {', '.join(map(str, seeds))}"
    )
    print(f"{'method':<12} {'loss':>8} {'lowest':>8} {'highest':>8} {'of fp32':>9} {'bytes/token':>12}", end="")
    print("".join(f"{f's at {rate / 1e6:.0f} Mbit/s':>17}" for rate in RATES))
    base: list[float] = []
    for name in names:
        results = [train(case, data, seed, METHODS[name]) for seed in seeds]
        losses = [loss for loss, _ in results]
        base = losses if name == "fp32" else base
        change = 100 * (mean(losses) / mean(base) - 1) if base else math.nan
        up, down = bits_per_value(METHODS[name], case)
        per_token = (up + down) / 8 * case.size / (case.every * case.batch * CONTEXT)
        rounds = [max(up, down) * case.size / rate + ROUND_TRIPS * ROUND_TRIP for rate in RATES]
        print(
            f"{name:<12} {mean(losses):8.4f} {min(losses):8.4f} {max(losses):8.4f} {change:+8.2f}% {per_token:12.1f}"
            + "".join(f"{seconds:17.2f}" for seconds in rounds),
            flush=True,
        )
        record.add(
            benchmark="sites",
            method=name,
            workers=case.workers,
            every=case.every,
            steps=case.steps,
            parameters=case.size,
            batch=case.batch,
            loss=spread(losses),
            percent_of_fp32=change,
            bytes_per_token=per_token,
            step_seconds=median(seconds for _, seconds in results),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="4,8")
    parser.add_argument("--every", default="30,100")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--methods", default="fp32,4,2+feedback")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for workers in map(int, args.workers.split(",")):
        for every in map(int, args.every.split(",")):
            case = Case(workers, every, args.steps, args.width, args.layers, args.batch)
            run(case, args.methods.split(","), list(range(args.seeds)), Record(args.json, seed=0))


if __name__ == "__main__":
    main()
