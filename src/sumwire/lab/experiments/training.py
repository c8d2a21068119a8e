"""Training: where every scheme ends at its bits, against Sumwire at equal bits."""

from __future__ import annotations

from collections.abc import Iterator

from sumwire.errors import ConfigError
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.schemes import BASE, SCHEMES
from sumwire.lab.experiments.trainings import points, rows, training
from sumwire.lab.workloads import TRAINED

APART = ("uniform", "powersgd-2")
"""Schemes whose points are their own: adding one does not mean measuring all others again."""


def measure(point: Point) -> Iterator[Row]:
    apart = str(point.get("schemes", ""))
    chosen = (BASE, *apart.split(",")) if apart else tuple(s.label for s in SCHEMES if s.label not in APART)
    unknown = set(chosen) - {scheme.label for scheme in SCHEMES}
    if unknown:
        raise ConfigError(f"no scheme {', '.join(sorted(unknown))}: choose from {', '.join(s.label for s in SCHEMES)}")
    schemes = {scheme.label: scheme for scheme in SCHEMES if scheme.label in chosen}
    methods = {label: scheme.build(point) for label, scheme in schemes.items()}
    for row in rows(training(point), methods, watched=True):
        scheme = schemes[row["method"]]
        if apart and scheme.label == BASE:
            continue  # the points of all others have it
        yield row | {"scheme": "Sumwire" if scheme.ours else scheme.label, "over_links": scheme.over_links}


EXPERIMENT = Experiment(
    name="training",
    title="Training with every scheme",
    question="How much worse than with fp32 does training end, for the bits that travel in both directions?",
    quick=points(("perceptron",), (4,), 1),
    full=points(TRAINED, (4, 8), 3) + points(TRAINED, (4, 8), 3, schemes=",".join(APART)),
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
