"""Ablation: each part of the codec switched off, in error and in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sumwire import Lattice
from sumwire.codec.lattice.options import MORE_DOWN
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.trainings import Build, lattice, peer, points, rows, training
from sumwire.lab.simulate import ByCodec
from sumwire.train.options import ENERGY

BITS = 2
"""Few, so that parts matter: at 4 bits most variants train like fp32."""

ON: dict[str, Any] = {"bits": BITS, "energy": ENERGY, "feedback": True, "down_bits": BITS + MORE_DOWN}

VARIANTS: dict[str, dict[str, Any]] = {
    "all on": {},
    "no rotation": {"rotate": False, "down_bits": "exact"},
    "no feedback": {"feedback": False},
    "no stratified rounding": {"rounding": "independent"},
    "no block scales": {"block": 1 << 18},
    "no energy": {"widths": "fixed"},
    "no narrowing": {"down_bits": "exact"},
}


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    methods: dict[str, Build] = {"fp32": peer("fp32", point)}
    methods |= {name: lattice(point, **ON | off) for name, off in VARIANTS.items()}
    methods["all off: THC's recipe"] = lambda size: ByCodec(Lattice.thc(workers, BITS, lane_bits=None, seed=seed))
    yield from rows(training(point), methods)


EXPERIMENT = Experiment(
    name="ablation",
    title="Ablation",
    question="What is each part of the codec worth, in error and in training?",
    quick=points(("perceptron",), (4,), 1),
    full=points(("cnn-small", "gpt-small"), (4,), 3),
    measure=measure,
    columns={
        "workload": "{workload}", "seed": "{seed}", "variant": "{method}", "up": "{up_bits:.2f}",
        "down": "{down_bits:.2f}", "metric": "{metric}", "score": "{score:.4f}", "worse than fp32 by": "{worse:+.4f}",
        "NMSE of a round": "{nmse:.4f}", "NMSE of all rounds": "{late_nmse:.5f}", "diverged": "{diverged}",
    },
    chart=Chart(
        x="total_bits", y="worse", series="method", panel="workload", x_label="bits per value, both directions",
        y_label="worse than fp32 by", x_digits=1, x_most=26,
    ),
    notes=f"{BITS} bits up. Without rotation, sums cannot be narrowed, so two parts are off there. With feedback, a "
    "round also holds what earlier ones left: its error says little, that of the sum over all rounds says more.",
)  # fmt: skip
