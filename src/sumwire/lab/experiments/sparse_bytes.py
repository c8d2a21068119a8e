"""Bytes of a lossless round, against the number of workers: gradients of models, and drawn tensors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.gradients import worker_gradients
from sumwire.lab.sparse_bytes import LAWS, count, drawn

SIZE = 1 << 20
"""Values of drawn tensors."""


def measure(point: Point) -> Iterator[Row]:
    source, workers, density = str(point["source"]), int(point["workers"]), float(point["density"])
    if density:
        name = f"{source}, {density:.1%}"
        found = count(drawn(source, SIZE, workers, density), workers)
    else:
        name = source
        found = count(worker_gradients(source, workers, steps=int(point["steps"]), seed=int(point["seed"])), workers)
    shares = {"Sparse": found.ours, "Sparse, padded": found.padded, "paper's best": found.best_of_lhc}
    for method, share in (shares | found.others()).items():
        yield {
            "tensors": name,
            "size": found.size,
            "own_percent": 100 * found.own,
            "union_percent": 100 * found.union,
            "method": method,
            "percent_of_dense": 100 * share,
        }


def _points(
    workloads: dict[str, int], densities: tuple[float, ...], workers: tuple[int, ...], seeds: int
) -> list[Point]:
    models: list[Point] = [
        {"source": name, "steps": steps, "density": 0, "workers": n, "seed": seed}
        for (name, steps), n, seed in product(workloads.items(), workers, range(seeds))
    ]
    laws: list[Point] = [
        {"source": law, "density": density, "workers": n, "seed": 0}
        for law, density, n in product(LAWS, densities, workers)
    ]
    return models + laws


EXPERIMENT = Experiment(
    name="sparse_bytes",
    title="Bytes of sparse sums",
    question="How many bytes does a lossless round take beside a dense one, and how do they grow with workers?",
    quick=_points({"ncf-small": 20, "lstm-small": 20}, (0.01,), (2, 8), 1),
    full=_points({"ncf": 50, "ncf-rows": 50, "lstm": 30}, (0.001, 0.01, 0.1), (2, 4, 8, 16), 3),
    measure=measure,
    columns={
        "tensors": "{tensors}", "values": "{size:,}", "workers": "{workers}", "seed": "{seed}",
        "non-zero": "{own_percent:.2f} %", "at any worker": "{union_percent:.2f} %", "method": "{method}",
        "of a dense ring": "{percent_of_dense:.2f} %",
    },
    chart=Chart(
        x="workers", y="percent_of_dense", series="method", panel="tensors", x_label="workers",
        y_label="bytes of a dense ring, %", log_x=True, log_y=True,
    ),
    notes="Gradients of models in training, and tensors whose non-zeros every worker draws by one law. Bytes are those "
    "that a worker sends, without headers. Sparse is encoded, added and counted; padded: with every summed segment as "
    "long as the longest, as more than 8 ranks send them. The others are calculated from the densities: the smaller "
    "index of lossless homomorphic compression, compaction, and sketches with predicted and with joined room.",
)  # fmt: skip
