"""Training with the codec: which bits, energy exponent and feedback match fp32, with SGD and AdamW.

Data-parallel workers in one process. A seed determines initial weights, the order of the data and the noise of
the codec, so that runs of every setting can be paired with those of fp32.

python -m benchmarks.training [--seeds 5] [--jobs 2] [--quick] [--models conv,transformer] [--workers 4] [--out FILE]
python -m benchmarks.training --from results.json    # print the tables again
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import islice, pairwise, product
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.training_report import MANY_SETTINGS, METRICS, SETTINGS, Run, Setting, record_lines, tables
from sumwire import Lattice, Residual
from sumwire.errors import NonFiniteError
from sumwire.lab.comparison import find_task
from sumwire.lab.record import Record, add_option
from sumwire.lab.workloads.reproducible import draw_batches, seeded

Floats = NDArray[np.float32]

WORKERS, BUCKETS = 4, 4
LAST = 4
"""The final training loss is the mean of evaluations after each of the last steps, this many."""


TASKS = {"conv": find_task("cnn"), "transformer": find_task("gpt-small")}
"""By their names in published tables."""


class Owner:
    """Narrows means with what it lost before added to them.

    A real owner would do so with lanes; here the mean is encoded again, with 8 bits, whose error is not visible."""

    def __init__(self, codec: Lattice, size: int) -> None:
        self.codec = Lattice(1, 8, energy=codec.energy, seed=codec.seed + 1, down_bits=codec.down_bits)
        self.residual: Floats = np.zeros(size, np.float32)

    def __call__(self, mean: Floats, round_id: int) -> Floats:
        wanted = mean + self.residual
        payload = self.codec.encode(wanted, self.codec.propose(wanted), rank=0, round_id=round_id)
        sent: Floats = self.codec.decode(self.codec.add([payload]).narrow())
        self.residual = wanted - sent
        return sent


class Averager:
    """Averages the flat gradients of workers bucket by bucket, and measures bytes and errors per tensor."""

    def __init__(self, setting: Setting, workers: int, seed: int, sizes: Sequence[int]) -> None:
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        # As in DDP: whole tensors, until a bucket is full.
        total, edges = int(self.starts[-1]), [0]
        for edge in self.starts[1:].tolist():
            if edge - edges[-1] >= total / BUCKETS or edge == total:
                edges.append(edge)
        self.buckets = [slice(a, b) for a, b in pairwise(edges)]
        self.codec = self.memory = self.owners = None
        if setting.bits:
            options: dict[str, Any] = {"energy": setting.energy, "feedback": setting.feedback}
            if setting.variant == "uncorrected":
                options |= {"table": "uniform", "unbiased": False}
            if setting.variant in ("uncorrected", "exact sums"):
                options["down_bits"] = "exact"
            else:
                options["down_bits"] = setting.bits + 1.125  # with feedback, too
            self.codec = Lattice(workers, setting.bits, seed=seed, **options)
            if setting.feedback:
                self.memory = [[Residual(self.codec) for _ in range(workers)] for _ in self.buckets]
            if setting.variant == "owner feedback":
                self.owners = [Owner(self.codec, bucket.stop - bucket.start) for bucket in self.buckets]
        self.rounds, self.up, self.down = 0, 0, 0
        self.nmse: list[float] = []
        self.error, self.power = np.zeros(len(sizes)), np.zeros(len(sizes))
        self.error_sum, self.mean_sum = np.zeros(total), np.zeros(total)

    def __call__(self, xs: Sequence[Floats]) -> Floats:
        mean: Floats = np.mean(xs, axis=0)
        if self.codec is None:
            return mean
        out: Floats = np.empty_like(mean)
        for number, bucket in enumerate(self.buckets):
            out[bucket] = self._bucket(self.codec, number, [x[bucket] for x in xs])
        error = np.square(out - mean, dtype=np.float64)
        power = np.square(mean, dtype=np.float64)
        self.nmse.append(float(error.sum() / power.sum()))
        self.error += np.add.reduceat(error, self.starts[:-1])
        self.power += np.add.reduceat(power, self.starts[:-1])
        self.error_sum += out - mean
        self.mean_sum += mean
        return out

    def _bucket(self, codec: Lattice, number: int, xs: list[Floats]) -> Floats:
        self.rounds += 1
        memory = self.memory[number] if self.memory else None
        if memory:
            xs = [m.correct(x) for m, x in zip(memory, xs, strict=True)]
        terms = reduce(or_, map(codec.propose, xs))
        if memory:
            payloads = [m.encode(terms, rank=r, round_id=self.rounds) for r, m in enumerate(memory)]
        else:
            payloads = [codec.encode(x, terms, rank=r, round_id=self.rounds) for r, x in enumerate(xs)]
        exact = codec.add(payloads)
        total = exact.narrow()
        self.up += sum(p.nbytes for p in payloads)
        self.down += total.nbytes
        return codec.decode(total) if self.owners is None else self.owners[number](codec.decode(exact), self.rounds)

    def report(self, names: Sequence[str], xs: Sequence[Floats]) -> Run:
        if not self.nmse:
            return {}
        coordinates = len(self.nmse) * int(self.starts[-1])
        late, wanted = (np.add.reduceat(np.square(v), self.starts[:-1]) for v in (self.error_sum, self.mean_sum))
        held = [float(np.square(m.value).sum()) for ms in self.memory or [] for m in ms]
        return {
            "up": self.up * 8 / len(xs) / coordinates,
            "down": self.down * 8 / coordinates,
            "nmse": float(np.mean(self.nmse)),
            "residual": math.sqrt(sum(held) / sum(float(np.square(x).sum()) for x in xs)),
            "layers": dict(zip(names, (self.error / self.power).tolist(), strict=True)),
            "layers_late": dict(zip(names, (late / wanted).tolist(), strict=True)),
        }


def train(name: str, setting: Setting, workers: int, seed: int, quick: bool = False) -> Run:
    torch.set_num_threads(1)
    began, task = time.perf_counter(), TASKS[name]
    shorter = 1 if workers <= WORKERS else 4  # many workers see more data in each step
    steps, warmup = (30, 5) if quick else (task.steps // shorter, task.warmup // shorter)
    data = task.load(seed)
    model = seeded(partial(task.model, data), seed)
    optimizer = task.optimizer(model)
    schedule = replace(task, warmup=warmup).schedule(optimizer, steps)
    # DDP's buckets start with the last layers. Biases and norms are small and are sent uncompressed.
    named = list(reversed(list(model.named_parameters())))
    sent = [(k, p) for k, p in named if p.ndim >= 2 or p.numel() >= 1024]
    few = [p for _, p in named if p.ndim < 2 and p.numel() < 1024]
    parameters = [p for _, p in sent]
    average = Averager(setting, workers, seed, [p.numel() for p in parameters])

    # Those that the training loss is taken from.
    first = data._replace(test_inputs=data.inputs[:256], test_targets=data.targets[:256])
    batches = draw_batches(len(data.inputs), task.batch, torch.Generator().manual_seed(seed))
    losses: list[float] = []
    curve: list[float] = []
    flats: list[Floats] = []
    finite = True
    for step in range(steps):
        flats, rest = [], []
        for batch in islice(batches, workers):
            loss = task.loss(model, data.inputs[batch], data.targets[batch])
            losses.append(loss.item())
            grads = torch.autograd.grad(loss, parameters + few)
            flats.append(torch.cat([g.flatten() for g in grads[: len(sent)]]).numpy())
            rest.append(torch.cat([g.flatten() for g in grads[len(sent) :]]))
        try:
            mean = torch.cat([torch.from_numpy(average(flats)), torch.stack(rest).mean(0)])
        except NonFiniteError:
            finite = False
            break
        for p, g in zip(parameters + few, mean.split([p.numel() for p in parameters + few]), strict=True):  # type: ignore[no-untyped-call]
            p.grad = g.view_as(p)
        optimizer.step()
        schedule.step()
        if step >= steps - LAST:
            curve.append(task.scores(model, first).loss)
    accuracy, test_loss = task.scores(model, data)
    return {
        "model": name, "workers": workers, "setting": str(setting), "seed": seed, "finite": finite,
        "path": float(np.mean(losses)),
        "train": float(np.mean(curve)) if finite else math.nan, "test": test_loss, "accuracy": 100 * accuracy,
        "seconds": time.perf_counter() - began, **average.report([k for k, _ in sent], flats),
    }  # fmt: skip


def _job(job: tuple[str, Setting, int, int, bool]) -> Run:
    return train(*job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="30 steps, for a smoke test")
    parser.add_argument("--models", default=",".join(TASKS))
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help="with more than 4: few settings, a quarter of steps"
    )
    parser.add_argument("--out", type=Path, help="file of raw results; runs that it contains are not repeated")
    parser.add_argument(
        "--from", type=Path, dest="source", help="print the tables of these results instead of training"
    )
    add_option(parser)
    args = parser.parse_args()
    if args.source:
        publish(json.loads(args.source.read_text()), args.json)
        return
    runs: list[Run] = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    known = {(run["model"], run["setting"], run["seed"]) for run in runs}
    every = product(args.models.split(","), range(args.seeds), SETTINGS if args.workers <= WORKERS else MANY_SETTINGS)
    jobs = [(m, s, args.workers, k, args.quick) for m, k, s in every if (m, str(s), k) not in known]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for run in pool.imap(_job, jobs):
            runs.append(run)
            scores = ", ".join(f"{title} {run[key]:.4f}" for key, (title, _) in METRICS.items())
            where = f"{len(runs)}/{len(known) + len(jobs)} {run['model']} seed {run['seed']}: {run['setting']}"
            print(f"{where}: {scores} ({run['seconds']:.1f} s)", file=sys.stderr)
            if args.out:
                args.out.write_text(json.dumps(runs))
    publish(runs, args.json)


def publish(runs: list[Run], path: Path | None) -> None:
    tables(runs)
    record_lines(runs, Record(path, seed=0))


if __name__ == "__main__":
    main()
