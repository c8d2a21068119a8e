"""Many workers in training: where Sumwire, exact sums, THC and its uniform variant end, from 2 workers on."""

from __future__ import annotations

from collections.abc import Iterator

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.trainings import Build, lattice, peer, points, rows, training
from sumwire.lab.simulate import ByCodec
from sumwire.train.options import ENERGY

MANY = (2, 8, 32, 128, 1024)
SOME = (2, 8, 32, 64)


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    methods: dict[str, Build] = {
        "fp32": peer("fp32", point),
        "Sumwire, 4 bits": lattice(point, bits=4, energy=ENERGY),
        "Sumwire, 4 bits, exact sums": lattice(point, bits=4, energy=ENERGY, down_bits="exact"),
        "Sumwire, 2 bits": lattice(point, bits=2, energy=ENERGY),
        "THC": lambda size: ByCodec(Lattice.thc(workers, seed=seed)),
        "uniform, 4 bits": lambda size: ByCodec(Lattice.uniform(workers, 4, seed=seed)),
    }
    yield from rows(training(point), methods)


EXPERIMENT = Experiment(
    name="scale_training",
    title="Scale in training",
    question="How much worse than with fp32 does training end, from 2 to 1,024 workers?",
    quick=points(("perceptron",), (2, 8, 32), 1, steps=40, batch=4),
    full=points(("gpt-small",), SOME, 3, steps=60, batch=2)
    # Loss, because one of its held-out samples is .0017 of accuracy.
    + points(("perceptron",), MANY, 3, steps=40, batch=1, metric="loss"),
    measure=measure,
    columns={
        "workload": "{workload}", "workers": "{workers}", "seed": "{seed}", "method": "{method}",
        "up": "{up_bits:.2f}", "down": "{down_bits:.2f}", "metric": "{metric}", "score": "{score:.4f}",
        "worse than fp32 by": "{worse:+.4f}", "NMSE": "{nmse:.5f}", "diverged": "{diverged}",
    },
    chart=Chart(
        x="workers", y="worse", series="method", panel="workload", x_label="workers", y_label="worse than fp32 by",
        log_x=True,
    ),
    notes="Every worker has as many samples in a step, however many workers there are, so that more of them see more "
    "data; the learning rate stays. Methods are compared with fp32 at the same number of workers and the same seed. No "
    "feedback.",
)  # fmt: skip
