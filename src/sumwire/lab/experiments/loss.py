"""Packet loss: training where blocks get lost in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.trainings import peer, points, row, training
from sumwire.lab.simulate import Conditions, OverNetwork
from sumwire.train.options import ENERGY

BITS = 4
RATES = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05)
RESYNC = 10


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    base = training(point).run(peer("fp32", point)).score
    for loss, feedback, resync in product(RATES, (False, True), (0, RESYNC)):
        if not loss and resync:
            continue
        codec = Lattice(workers, BITS, seed=seed, energy=ENERGY, feedback=feedback)
        run = training(point, resync=resync)
        outcome = run.run(lambda size: OverNetwork(codec, Conditions(loss=loss), seed=seed))  # noqa: B023
        method = (
            f"{'feedback' if feedback else 'no feedback'}, {f'resync each {resync} steps' if resync else 'no resync'}"
        )
        yield {"method": method, "loss_percent": 100 * loss, "spread": outcome.spread} | row(run, outcome, base)


EXPERIMENT = Experiment(
    name="loss",
    title="Packet loss",
    question="What does training lose where packets get lost, with and without feedback and re-synchronization?",
    quick=points(("perceptron",), (4,), 1),
    full=points(("gpt-small",), (4,), 3),
    measure=measure,
    columns={
        "workload": "{workload}", "seed": "{seed}", "method": "{method}", "lost": "{loss_percent:.1f} %",
        "metric": "{metric}", "score": "{score:.4f}", "worse than fp32 by": "{worse:+.4f}",
        "parameters apart by": "{spread:.5f}", "diverged": "{diverged}",
    },
    chart=Chart(
        x="loss_percent", y="worse", series="method", panel="workload", x_label="blocks lost in each direction, %",
        y_label="worse than fp32 by",
    ),
    notes=f"{BITS} bits. Every block of a payload, and of a result at each worker, is lost independently; terms are "
    "not. Workers have parameters of their own: the score is the mean over them.",
)  # fmt: skip
