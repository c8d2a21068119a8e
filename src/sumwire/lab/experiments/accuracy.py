"""Accuracy per bit: Sumwire against published schemes, on gradients of every workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.traces import gradients_of, lattice_row, nmse
from sumwire.lab.peers import PEERS, at_bits
from sumwire.lab.peers.registry import Build
from sumwire.lab.simulate import true_mean

TOTALS = range(6, 17)
"""Bits per value in both directions that Sumwire is measured at."""

WORKLOADS = ("resnet", "cnn-small", "vgg-small", "gpt", "bert", "ncf-small", "lstm-small")
"""One of each family that the papers train."""

KNOBS: Mapping[str, tuple[str, Sequence[int]]] = {
    "qsgd-owner": ("qsgd-4-owner", (3, 6, 8)), "qgz": ("qgz-4", (3, 6, 8)), "sdp4bit": ("sdp4bit-4", (3, 6, 8)),
    "recompressed": ("recompressed-4", (3, 6, 8)), "dynamiq-any": ("dynamiq-any-5", (3, 4, 6, 8)),
}  # fmt: skip
"""Schemes with a choice of bits: the published setting, and others for comparisons at equal bits."""

ROUNDS = 3


def _others() -> Iterator[tuple[str, Build]]:
    """Settings of peers, each with its scheme, which may have several."""
    schemes = {published: scheme for scheme, (published, _) in KNOBS.items()}
    yield from ((schemes.get(name, name), build) for name, build in PEERS.items())
    for scheme, (_, widths) in KNOBS.items():
        yield from ((scheme, at_bits(scheme, bits)) for bits in widths)


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    xs = gradients_of(str(point["workload"]), workers, part=float(point["part"]), seed=seed)
    exact = true_mean(xs)
    for total in TOTALS:
        codec = Lattice(workers, total_bits=total, seed=seed)
        name = f"Lattice(total_bits={total})"
        yield {"scheme": "Sumwire", "name": name, "addable": True} | lattice_row(codec, xs, exact, rounds=ROUNDS)
    thc = Lattice.thc(workers, seed=seed)
    yield {"scheme": "THC", "name": "Lattice.thc", "addable": True} | lattice_row(thc, xs, exact, rounds=ROUNDS)
    for scheme, build in _others():
        found = [build(workers, xs[0].size, seed=seed + r).average(xs) for r in range(ROUNDS)]
        first = found[0]
        yield {
            "scheme": scheme,
            "name": build(workers, 1).name,
            "addable": build(workers, 1).addable,
            "nmse": sum(nmse(outcome.mean, exact) for outcome in found) / ROUNDS,
            "up_bits": first.up_bits,
            "down_bits": first.down_bits,
            "total_bits": first.up_bits + first.down_bits,
        }


def _points(workloads: tuple[str, ...], parts: tuple[float, ...], workers: tuple[int, ...], seeds: int) -> list[Point]:
    return [
        {"workload": workload, "part": part, "workers": n, "seed": seed}
        for workload, part, n, seed in product(workloads, parts, workers, range(seeds))
    ]


EXPERIMENT = Experiment(
    name="accuracy",
    title="Accuracy per bit",
    question="How far from the true mean is each scheme, for the bits that travel in both directions?",
    quick=_points(("mlp",), (1.0,), (4,), 1),
    full=_points(WORKLOADS, (0.1, 0.5, 1.0), (4,), 3) + _points(WORKLOADS, (1.0,), (8,), 3),
    measure=measure,
    columns={
        "workload": "{workload}", "workers": "{workers}", "trained": "{part:.0%}", "seed": "{seed}",
        "codec": "{name}", "up": "{up_bits:.2f}", "down": "{down_bits:.2f}", "both": "{total_bits:.2f}",
        "NMSE": "{nmse:.5f}",
    },
    chart=Chart(
        x="total_bits", y="nmse", series="scheme", panel="workload", x_label="bits per value, both directions",
        y_label="NMSE of the mean", log_y=True, x_digits=1, x_most=26,
    ),
    notes="One round from a fresh state: schemes with error feedback make up for some of their error in later rounds. "
    "Bits are those that one worker sends and receives, per value, with scales and indices.",
)  # fmt: skip
