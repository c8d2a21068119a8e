"""Throughput: how long a step takes with every scheme over links of several rates, with real ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from sumwire.errors import ConfigError
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.schemes import BASE, SCHEMES
from sumwire.lab.links import format_rate, links
from sumwire.lab.methods import is_ours, label, parse_methods
from sumwire.lab.step_times import StepTime, step_times
from sumwire.lab.workloads import TRACES, TRAINED

RATES = (100e6, 1e9, 5e9)
METHODS = (*(scheme.over_links for scheme in SCHEMES if scheme.over_links), "fp16")
DENSE = "fp32,bf16,fp16,sumwire-total-16,sumwire-4,sumwire-2"
"""For large tensors: peers' quantizers, in NumPy, would take minutes."""
QUICK = "fp32,bf16,sumwire-4,peer-qgz-4,peer-mxfp4"


def measure(point: Point) -> Iterator[Row]:
    workers, rate, seed = int(point["workers"]), float(point["rate"]), int(point["seed"])
    methods = methods_of(point, METHODS)
    with links(workers, rate) as network:
        if not network.shaped:
            raise ConfigError(f"cannot measure over links of {format_rate(rate)} on this machine: {network.note}")
        found = step_times(network, str(point["workload"]), methods, steps=int(point["steps"]), seed=seed)
    between = f"{format_rate(rate)}, {workers} workers"
    base = next(each.median for each in found if each.method == BASE)
    for each in found:
        yield {"where": f"{point['workload']}, {between}", "links": between} | _row(each, base, workers)


def methods_of(point: Point, default: Sequence[str]) -> Sequence[str]:
    """What a point compares; fp32 must be there, since others are compared with it."""
    methods = parse_methods(str(point["methods"]), bits=4) if "methods" in point else default
    if BASE not in methods:
        raise ConfigError(f"methods {','.join(methods)} lack {BASE}, which others are compared with: add it")
    return methods


def _row(found: StepTime, base: float, workers: int) -> Row:
    return {
        "method": found.method,
        "label": label(found.method),
        "scheme": "Sumwire" if is_ours(found.method) else label(found.method),
        "ms": 1e3 * found.median,
        "ms_lowest": 1e3 * min(found.seconds),
        "ms_highest": 1e3 * max(found.seconds),
        "over_fp32": base / found.median,
        "compute_ms": 1e3 * found.compute,
        "codec_ms": 1e3 * found.codec_seconds,
        "kb": found.sent / 1e3,
        "both_bits": both_bits(found.sent, workers, found.values),
        "values": found.values,
    }


def both_bits(sent: float, workers: int, values: int) -> float:
    """Bits per value up and down, from the bytes that a worker put on the wire, as `sumwire.lab.peers` counts them.

    What a worker sends to itself is not on the wire: a ring of fp32 sends 2 (n - 1) / n tensors, and counts as 64 bits.

    >>> round(both_bits(4 * 1000 * 2 * 3 / 4, 4, 1000))
    64
    """
    return 8 * sent * workers / (workers - 1) / values


def _points(
    workloads: Sequence[str], rates: Sequence[float], workers: Sequence[int], steps: int, **same: str
) -> list[Point]:
    return [
        {"workload": workload, "rate": rate, "workers": n, "steps": steps, "seed": 0, **same}
        for workload, rate, n in product(workloads, rates, workers)
    ]


EXPERIMENT = Experiment(
    name="throughput",
    title="Throughput over links",
    question="How long does a training step take with every scheme, over links of several rates?",
    quick=_points(("perceptron",), (100e6,), (4,), 3, methods=QUICK),
    full=_points(TRAINED, RATES, (4, 8), 6) + _points(TRACES, (1e9, 5e9), (4,), 1, methods=DENSE),
    measure=measure,
    timed=True,
    columns={
        "links": "{where}", "method": "{label}", "ms/step": "{ms:.1f}", "from": "{ms_lowest:.1f}",
        "to": "{ms_highest:.1f}", "x fp32": "{over_fp32:.2f}", "compute ms": "{compute_ms:.1f}",
        "codec ms": "{codec_ms:.1f}", "kB/step": "{kb:,.0f}", "both": "{both_bits:.2f}",
    },
    chart=Chart(
        x="both_bits", y="over_fp32", series="scheme", panel="links",
        x_label="bits per value on the wire, both directions", y_label="times as fast as fp32",
        log_x=True, log_y=True, x_digits=0,
    ),
    notes="Real ranks over gloo, each in a network namespace of its own behind a link that tbf limits, in DDP: medians "
    "of four intervals of steps, after three that are not timed. All ranks share this machine's cores. Of the models "
    "named trace, only tensors are real, at the sizes of published models, so a step is little but its exchange. "
    "Compute ms are those of a step in which nothing is exchanged. kB are what one rank sends per step, counted by its "
    "interface, headers included; both is that in bits per value, up and down. Peers' quantizers are NumPy, so they "
    "take longer than tuned ones would: codec ms are what a rank spends per step on encoding, adding and decoding (0: "
    "not measured).",
)  # fmt: skip
