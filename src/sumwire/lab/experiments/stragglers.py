"""Stragglers: rounds that do not wait for all workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.trainings import peer, points, row, training
from sumwire.lab.simulate import Conditions, OverNetwork
from sumwire.train.options import ENERGY

BITS = 4
LATE = (0, 1, 2, 3)
QUORUMS = (1.0, 0.9, 0.8, 0.7)


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    run = training(point)
    base = run.run(peer("fp32", point)).score
    for late, quorum, feedback in product(LATE, QUORUMS, (False, True)):
        conditions = Conditions(late=late, quorum=round(quorum * workers))
        if conditions.absent(workers) < round((1 - quorum) * workers):
            continue  # nobody else is left out: as with a higher quorum
        codec = Lattice(workers, BITS, seed=seed, energy=ENERGY, feedback=feedback)
        method = OverNetwork(codec, conditions, seed=seed)
        outcome = run.run(lambda size: method)  # noqa: B023
        about = {"late": late, "quorum_percent": 100 * quorum, "feedback": feedback, "time": method.seconds / run.steps}
        yield about | {"method": f"quorum {quorum:.0%}{', feedback' if feedback else ''}"} | row(run, outcome, base)


EXPERIMENT = Experiment(
    name="stragglers",
    title="Stragglers",
    question="What does a quorum cost in accuracy and save in time, if some of ten workers are late?",
    quick=points(("perceptron",), (10,), 1),
    full=points(("lstm-small",), (10,), 3),
    measure=measure,
    columns={
        "workload": "{workload}", "seed": "{seed}", "late": "{late}", "quorum": "{quorum_percent:.0f} %",
        "feedback": "{feedback}", "time of a step": "{time:.2f}", "metric": "{metric}", "score": "{score:.4f}",
        "worse than fp32 by": "{worse:+.4f}", "diverged": "{diverged}",
    },
    chart=Chart(
        x="late", y="worse", series="method", panel="workload", x_label="late workers of ten",
        y_label="worse than fp32 by",
    ),
    notes=f"{BITS} bits. Late workers are drawn anew in each step and take twice the time of the others, whose mean is "
    "1 with a deviation of 5 %. Times are calculated. Without feedback, what comes late is gone; with it, it comes "
    "with the next payload.",
)  # fmt: skip
