"""Packages that are installed: error of the mean by their own code, beside Sumwire."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sumwire import Lattice, __version__
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.traces import gradients_of, lattice_row, nmse
from sumwire.lab.peers.installed import PACKAGES
from sumwire.lab.simulate import true_mean

TOTALS = (12, 16)
"""Bits per value in both directions that Sumwire is measured at; those of the packages' 8-bit schemes are 16."""


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    xs = gradients_of(str(point["workload"]), workers, part=float(point["part"]), seed=seed)
    exact = true_mean(xs)
    for total in TOTALS:
        about = {"package": "Sumwire", "package_version": __version__, "scheme": f"Lattice(total_bits={total})"}
        yield about | lattice_row(Lattice(workers, total_bits=total, seed=seed), xs, exact, rounds=1) | {"note": ""}
    for name, package in PACKAGES.items():
        for scheme, found in package.averages(xs):
            row: Row = {"package": name, "package_version": package.version, "scheme": scheme, "note": ""}
            if isinstance(found, str):
                yield row | {"note": found}
                continue
            yield row | {
                "nmse": float(np.mean([nmse(mean, exact) for mean in found.means])),
                "up_bits": found.up_bits,
                "down_bits": found.down_bits,
                "total_bits": found.up_bits + found.down_bits,
            }


def _points(workloads: tuple[str, ...], workers: tuple[int, ...], seeds: int) -> list[Point]:
    return [
        {"workload": workload, "part": 1.0, "workers": n, "seed": seed}
        for workload in workloads
        for n in workers
        for seed in range(seeds)
    ]


EXPERIMENT = Experiment(
    name="installed",
    title="Installed packages",
    question="How far from the true mean are hivemind, DeepSpeed and torchft by their own code, where installed?",
    quick=_points(("mlp",), (2,), 1),
    full=_points(("mlp", "resnet"), (2, 4), 3),
    measure=measure,
    columns={
        "workload": "{workload}", "workers": "{workers}", "seed": "{seed}", "package": "{package}",
        "version": "{package_version}", "scheme": "{scheme}", "up": "{up_bits:.2f}", "down": "{down_bits:.2f}",
        "both": "{total_bits:.2f}", "NMSE": "{nmse:.7f}", "note": "{note}",
    },
    chart=Chart(
        x="total_bits", y="nmse", series="scheme", panel="workload", x_label="bits per value, both directions",
        y_label="NMSE of the mean", log_y=True, x_digits=1,
    ),
    notes="One round between workers of one process, without a GPU: quantizers and the order of operations are the "
    "package's own, torchft's kernels interpreted by Triton. Where workers end with different means, NMSE is the mean "
    "over them. Schemes simulated from their papers are in experiment accuracy.",
)  # fmt: skip
