"""Bits, granularity and clipping: does the solver's choice win over a sweep?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.traces import gradients_of, lattice_row
from sumwire.lab.simulate import true_mean

ROUNDS = 4
GRANULARITIES = {2: (3, 5, 9, 15), 3: (7, 11, 19, 31), 4: (15, 25, 45, 63)}
"""From a uniform table to the finest that keeps exact sums in a byte, by bits."""
CLAMPED = tuple(2.0**-k for k in range(2, 13))
"""Shares of coordinates that are clamped: THC's p."""


def measure(point: Point) -> Iterator[Row]:
    workers, bits, seed = int(point["workers"]), int(point["bits"]), int(point["seed"])
    xs = gradients_of(str(point["workload"]), workers, part=1.0, seed=seed)
    exact = true_mean(xs)

    def row(choice: str, **options: float) -> Row:
        codec = Lattice(workers, bits, seed=seed, down_bits="exact", widths="fixed", **options)  # type: ignore[arg-type]
        lattice = codec.nominal_lattice
        about = {"choice": choice, "granularity": lattice.granularity, "clip": round(lattice.clip, 4)}
        return about | lattice_row(codec, xs, exact, rounds=ROUNDS)

    yield row("solver")
    for granularity, share in product(GRANULARITIES[bits], CLAMPED):
        yield row(f"g = {granularity}", granularity=granularity, clip=share)


def _points(workloads: tuple[str, ...], bits: tuple[int, ...], seeds: int) -> list[Point]:
    return [
        {"workload": workload, "workers": 4, "bits": b, "seed": seed}
        for workload, b, seed in product(workloads, bits, range(seeds))
    ]


EXPERIMENT = Experiment(
    name="bits",
    title="Bits, granularity and clipping",
    question="Does the solver's choice win over a sweep of granularity and clipping at 2, 3 and 4 bits?",
    quick=_points(("mlp",), (2, 4), 1),
    full=_points(("mlp", "resnet", "gpt"), (2, 3, 4), 3),
    measure=measure,
    columns={
        "workload": "{workload}", "bits": "{bits}", "seed": "{seed}", "choice": "{choice}",
        "granularity": "{granularity}", "clamped at": "{clip:.2f}", "bits down": "{down_bits:.2f}",
        "NMSE": "{nmse:.5f}",
    },
    chart=Chart(
        x="clip", y="nmse", series="choice", panel="bits",
        x_label="where coordinates are clamped, in standard deviations", y_label="NMSE of the mean", log_y=True,
    ),
    notes="Fixed widths and exact sums, as in the paper, so that only the table differs.",
)  # fmt: skip
