"""Many workers: error and bits from 2 to 1,024, where the papers stop at 30."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sumwire import Lattice
from sumwire.errors import SumwireError
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.traces import lattice_row, noise, noise_points
from sumwire.lab.simulate import true_mean

SIZE = 1 << 16
ROUNDS = 2

BUILDS: dict[str, Callable[[int, int], Lattice]] = {
    "Sumwire, 4 bits": lambda workers, seed: Lattice(workers, 4, seed=seed),
    "Sumwire, 4 bits, exact sums": lambda workers, seed: Lattice(workers, 4, seed=seed, down_bits="exact"),
    "Sumwire, 2 bits": lambda workers, seed: Lattice(workers, 2, seed=seed),
    "THC": lambda workers, seed: Lattice.thc(workers, seed=seed),
    "uniform, 4 bits": lambda workers, seed: Lattice.uniform(workers, 4, seed=seed),
}


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    xs = noise(workers, SIZE, float(point["correlation"]), seed)
    exact = true_mean(xs)
    for name, build in BUILDS.items():
        try:
            codec = build(workers, seed)
        except SumwireError as error:
            yield {"scheme": name, "refused": str(error)}
        else:
            yield {"scheme": name} | lattice_row(codec, xs, exact, rounds=ROUNDS)


EXPERIMENT = Experiment(
    name="scale",
    title="Scale",
    question="How do error and bits change from 2 to 1,024 workers, and where does it break?",
    quick=noise_points((2, 8, 32), 1),
    full=noise_points((2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), 3),
    measure=measure,
    columns={
        "workers": "{workers}", "correlation": "{correlation}", "seed": "{seed}", "scheme": "{scheme}",
        "bits up": "{up_bits:.2f}", "bits down": "{down_bits:.2f}", "NMSE": "{nmse:.6f}", "refused": "{refused}",
    },
    chart=Chart(
        x="workers", y="nmse", series="scheme", panel="correlation", x_label="workers", y_label="NMSE of the mean",
        log_x=True, log_y=True,
    ),
    notes=f"Normal vectors of {SIZE:,} values, any two of which have the given correlation, all in one process.",
)  # fmt: skip
