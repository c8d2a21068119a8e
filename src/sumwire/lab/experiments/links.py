"""Time to a target over slow links: every scheme as real ranks on the same wires, with the bytes counted there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from sumwire.errors import ConfigError
from sumwire.lab.comparison import Run, compare, find_task
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.schemes import BASE
from sumwire.lab.experiments.throughput import both_bits, methods_of
from sumwire.lab.links import format_rate, links
from sumwire.lab.methods import is_ours, label
from sumwire.lab.workloads import TARGETS
from sumwire.lab.workloads.classify import Classify

METHODS = (
    "fp32", "bf16", "fp16", "powersgd-4", "sumwire-2", "sumwire-4", "sumwire-total-8", "peer-qgz-4", "peer-mxfp4",
)  # fmt: skip
"""fp32 must be there: others are compared with it. All schemes are in "throughput"."""
QUICK = "fp32,bf16,powersgd-4,sumwire-4,peer-mxfp4"


def measure(point: Point) -> Iterator[Row]:
    workers, rate, seed = int(point["workers"]), float(point["rate"]), int(point["seed"])
    task = find_task(str(point["workload"]))
    methods = methods_of(point, METHODS)
    target = task.check_target(float(point["target"]) if "target" in point else None)
    steps = int(point.get("steps", task.steps))
    # What runs first or last must not always be the same: the machine gets warm, and caches fill.
    order = [*methods[seed % len(methods) :], *methods[: seed % len(methods)]]
    with links(workers, rate) as network:
        if not network.shaped:
            raise ConfigError(f"cannot measure over links of {format_rate(rate)} on this machine: {network.note}")
        runs = {run.method: run for run in compare(network, task, order, seed=seed, steps=steps)}
    where = f"{task.name}, {format_rate(rate)}, {workers} workers"
    for row in rows([runs[method] for method in methods], task, target, workers):
        yield {"where": where} | row


def rows(runs: Sequence[Run], task: Classify, target: float, workers: int) -> Iterator[Row]:
    """A row for each run, compared with that of fp32."""
    values = sum(parameter.numel() for parameter in task.network().parameters())
    base = next(run.score(task.metric)[-1] for run in runs if run.method == BASE)
    for run in runs:
        reached, score = run.reached(task.metric, target), run.score(task.metric)[-1]
        row: Row = {
            "method": label(run.method), "scheme": scheme(run.method), "metric": task.metric, "target": target,
            "when": f"{reached.seconds:.1f}" if reached else "not reached",
            "ms": 1e3 * run.step_seconds, "kb": run.step_bytes / 1e3,
            "both_bits": both_bits(run.step_bytes, workers, values), "codec_ms": run.codec_ms,
            "identical": run.identical, "diverged": not math.isfinite(score),
        }  # fmt: skip
        if reached:
            row |= {"seconds": reached.seconds, "steps_to_target": reached.step}
        if math.isfinite(score):  # NaN is not JSON
            row |= {"score": score, "worse": task.sign * (base - score) + 0.0}  # not -0.0
        yield row


def scheme(method: str) -> str:
    """The line of the chart: one for all bits of Sumwire, and one for all ranks of PowerSGD."""
    if is_ours(method) and method != "sumwire-2":
        return "Sumwire"
    return "PowerSGD" if method.startswith("powersgd") else label(method)


def _points(workloads: Sequence[str], rates: Sequence[float], workers: Sequence[int], seeds: int) -> list[Point]:
    return [
        {"workload": workload, "rate": rate, "workers": n, "seed": seed}
        for workload, rate, n, seed in product(workloads, rates, workers, range(seeds))
    ]


EXPERIMENT = Experiment(
    name="links",
    title="Time to a target over slow links",
    question="How soon does each scheme reach the target over slow links?",
    quick=[
        {"workload": "perceptron", "rate": 100e6, "workers": 4, "seed": 0, "steps": 60, "target": 0.9, "methods": QUICK}
    ],
    full=_points(TARGETS, (100e6,), (4,), 3),
    measure=measure,
    timed=True,
    columns={
        "links": "{where}", "seed": "{seed}", "method": "{method}", "s to target": "{when}", "ms/step": "{ms:.0f}",
        "codec ms": "{codec_ms:.1f}", "kB/step": "{kb:,.0f}", "both": "{both_bits:.2f}",
        "final": "{metric} {score:.4f}", "worse than fp32 by": "{worse:+.4f}", "ranks agree": "{identical}",
    },
    chart=Chart(
        x="both_bits", y="seconds", series="scheme", panel="where",
        x_label="bits per value on the wire, both directions", y_label="s to target",
        log_x=True, log_y=True, x_digits=1,
    ),
    notes="Real ranks over gloo, each in a network namespace of its own behind a link that tbf limits. All methods of "
    "a point run in the same processes, from the same weights, on the same batches, with fp32's learning rate. kB are "
    "what one rank sends per step, counted by its interface, headers included; both is that in bits per value, up and "
    "down. Torch's hooks and Sumwire exchange buckets while gradients are still computed; peers and PowerSGD have one "
    "bucket. Peers' quantizers are NumPy, so their steps take longer than those of a tuned implementation would: codec "
    "ms are what a rank spends per step on encoding, adding and decoding (0: not measured).",
)  # fmt: skip
