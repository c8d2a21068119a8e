"""Training: where every scheme ends at its bits, against Sumwire at equal bits."""

from __future__ import annotations

from collections.abc import Iterator

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.trainings import Build, lattice, peer, points, rows, training
from sumwire.lab.simulate import ByCodec
from sumwire.lab.workloads import TRAINED
from sumwire.train.options import ENERGY

TOTALS = (6, 8, 10, 12, 16)
SCHEMES = (
    "bf16", "powersgd-1", "powersgd-4", "topk-10%", "dgc-1%", "terngrad", "qsgd-4-owner", "ef-sign-double", "fp8-rows",
    "qgz-4", "loco-4-4", "sdp4bit-4", "mxfp4", "mxfp6", "dynamiq-any-5", "recompressed-4",
)  # fmt: skip
"""One or two settings of each: of several at about the same bits, that with the least error in "accuracy"."""


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    methods: dict[str, Build] = {"fp32": peer("fp32", point)}
    methods |= {f"Sumwire, {total} bits": lattice(point, total_bits=total, energy=ENERGY) for total in TOTALS}
    methods["Sumwire, 2 up, feedback"] = lattice(point, bits=2, energy=ENERGY, feedback=True)
    methods["THC"] = lambda size: ByCodec(Lattice.thc(workers, seed=seed))
    methods["THC, feedback"] = lambda size: ByCodec(Lattice.thc(workers, seed=seed, feedback=True))
    methods |= {name: peer(name, point) for name in SCHEMES}
    for row in rows(training(point), methods):
        ours = row["method"].startswith("Sumwire")
        yield row | {"scheme": "Sumwire" if ours else row["method"]}


EXPERIMENT = Experiment(
    name="training",
    title="Training with every scheme",
    question="How much worse than with fp32 does training end, for the bits that travel in both directions?",
    quick=points(("perceptron",), (4,), 1),
    full=points(TRAINED, (4,), 3),
    measure=measure,
    columns={
        "workload": "{workload}", "seed": "{seed}", "method": "{method}", "up": "{up_bits:.2f}",
        "down": "{down_bits:.2f}", "both": "{total_bits:.2f}", "metric": "{metric}", "score": "{score:.4f}",
        "worse than fp32 by": "{worse:+.4f}", "NMSE": "{nmse:.5f}", "diverged": "{diverged}",
    },
    chart=Chart(
        x="total_bits", y="worse", series="scheme", panel="workload", x_label="bits per value, both directions",
        y_label="worse than fp32 by", x_digits=1, x_most=26,
    ),
    notes="All workers in one process, from the same weights, on the same batches. Schemes with error feedback or "
    "momentum keep their state; no learning rate was tuned for any of them. Biases and norms are averaged exactly by "
    "all.",
)  # fmt: skip
