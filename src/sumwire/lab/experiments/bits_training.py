"""Bits, granularity and clipping in training: does the solver's choice win where it counts?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.bits import GRANULARITIES
from sumwire.lab.experiments.trainings import lattice, peer, row, training

CLAMPED = tuple(2.0**-k for k in (3, 5, 7, 9, 11))
"""Shares of coordinates that are clamped: THC's p."""


def measure(point: Point) -> Iterator[Row]:
    workers, bits, seed = int(point["workers"]), int(point["bits"]), int(point["seed"])
    run = training(point)
    base = run.run(peer("fp32", point)).score
    choices: list[tuple[str, dict[str, Any]]] = [("solver", {})]
    choices += [
        (f"g = {granularity}", {"granularity": granularity, "clip": share})
        for granularity, share in product(GRANULARITIES[bits], CLAMPED)
    ]
    for choice, options in choices:
        fixed: dict[str, Any] = {"bits": bits, "down_bits": "exact", "widths": "fixed"} | options
        used = Lattice(workers, seed=seed, **fixed).nominal_lattice
        about = {
            "training": f"{point['workload']}, {bits} bits",
            "choice": choice,
            "granularity": used.granularity,
            "clip": round(used.clip, 4),
        }
        yield about | row(run, run.run(lattice(point, **fixed)), base)


def _points(workloads: tuple[str, ...], bits: tuple[int, ...], seeds: int) -> list[Point]:
    return [
        {"workload": workload, "metric": "loss", "workers": 4, "bits": b, "seed": seed}
        for workload, b, seed in product(workloads, bits, range(seeds))
    ]


EXPERIMENT = Experiment(
    name="bits_training",
    title="Bits, granularity and clipping in training",
    question="Does the solver's choice of granularity and clipping win over a sweep in training, too?",
    quick=_points(("perceptron",), (2,), 1),
    full=_points(("perceptron", "gpt-small"), (2, 3, 4), 3),
    measure=measure,
    columns={
        "workload": "{workload}", "bits": "{bits}", "seed": "{seed}", "choice": "{choice}",
        "granularity": "{granularity}", "clamped at": "{clip:.2f}", "bits down": "{down_bits:.2f}",
        "metric": "{metric}", "score": "{score:.4f}", "worse than fp32 by": "{worse:+.4f}", "NMSE": "{nmse:.5f}",
        "diverged": "{diverged}",
    },
    chart=Chart(
        x="clip", y="worse", series="choice", panel="training",
        x_label="where coordinates are clamped, in standard deviations", y_label="worse than fp32 by",
    ),
    notes="Fixed widths, exact sums and no feedback, so that only the table differs. NMSE is the mean over rounds. "
    "Losses are of held-out samples.",
)  # fmt: skip
