"""What experiments that train have in common: workloads with few steps, methods by name, and their rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

from sumwire import Lattice
from sumwire.lab.experiments.base import Point, Row
from sumwire.lab.peers import PEERS
from sumwire.lab.simulate import ByCodec, ByPeer, Method, Outcome, Training
from sumwire.lab.workloads import find

Build = Callable[[int], Method]
"""A method, for a number of values."""

STEPS: Mapping[str, int] = {
    "perceptron": 100, "cnn-small": 60, "vgg-small": 60, "gpt-small": 60, "bert": 50, "ncf-tiny": 80, "lstm-small": 60,
}  # fmt: skip
"""Enough to tell methods apart: fp32 is near the end of its way, or on the steep part of it."""


def training(point: Point, *, resync: int = 0) -> Training:
    """The run of a point: its workload, workers and seed; also steps, samples per worker and metric, where given."""
    workload, seed = find(str(point["workload"])), int(point["seed"])
    batch, metric = int(point.get("batch", workload.batch)), str(point.get("metric", workload.metric))
    workload = replace(workload, batch=batch, metric=metric)
    steps = int(point.get("steps", STEPS[workload.name]))
    return Training(workload, workload.load(seed), int(point["workers"]), steps, seed, resync)


def peer(name: str, point: Point) -> Build:
    return lambda size: ByPeer(PEERS[name](int(point["workers"]), size, seed=int(point["seed"])))


def lattice(point: Point, **options: object) -> Build:
    workers, seed = int(point["workers"]), int(point["seed"])
    return lambda size: ByCodec(Lattice(workers, seed=seed, **options))  # type: ignore[arg-type]


def rows(run: Training, methods: Mapping[str, Build], *, watched: bool = False) -> Iterator[Row]:
    """A row for each method, the first of which the others are compared with; `watched`: with scores on the way."""
    base: float | None = None
    for name, build in methods.items():
        scores: list[tuple[int, float]] = []
        run.on_step = partial(_watch, scores) if watched else None
        outcome = run.run(build)
        base = outcome.score if base is None else base
        found = {"method": name} | row(run, outcome, base)
        # NaN is not JSON.
        yield found | {"scores": [each for each in scores if math.isfinite(each[1])]} if watched else found


def _watch(scores: list[tuple[int, float]], step: int, run: Training) -> None:
    if step % run.workload.every == 0:
        scores.append((step, run.workload.score(run.models[0], run.data)))


def row(run: Training, outcome: Outcome, base: float) -> Row:
    """Without scores where training diverged: NaN is not JSON."""
    found: Row = {
        "metric": run.workload.metric,
        "up_bits": outcome.up_bits,
        "down_bits": outcome.down_bits,
        "total_bits": outcome.up_bits + outcome.down_bits,
        "diverged": outcome.diverged,
    }
    if not outcome.diverged:
        worse = run.workload.sign * (base - outcome.score) + 0.0  # not -0.0
        found |= {"score": outcome.score, "worse": worse, "nmse": outcome.nmse, "late_nmse": outcome.late_nmse}
    return found


def points(workloads: tuple[str, ...], workers: tuple[int, ...], seeds: int, **same: str | int) -> list[Point]:
    """`same`: what all of them have in common. Seed by seed, so that a run that was stopped has whole ones."""
    return [
        {"workload": workload, "workers": n, "seed": seed, **same}
        for seed, workload, n in product(range(seeds), workloads, workers)
    ]
