"""Sparse training: bytes and times of steps of models with mostly zero gradients, over links of several rates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from sumwire.lab import lhc
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.links import links
from sumwire.lab.sparse_training import compare_steps, methods_of
from sumwire.lab.workloads import find

CALCULATED = "paper's best, calculated"


def measure(point: Point) -> Iterator[Row]:
    workload, ranks = find(str(point["workload"])), int(point["ranks"])
    with links(ranks, 1e6 * float(point["mbit"])) as network:
        found = compare_steps(network, workload, methods_of(workload), int(point["steps"]), seed=int(point["seed"]))
    dense = lhc.dense_bytes(found.parameters, ranks)
    about = {
        "links": str(point["mbit"]) if network.shaped else "not shaped",
        "own_percent": 100 * found.own,
        "union_percent": 100 * found.union,
        "dense_mb": dense / 1e6,
    }
    for line in found.figures():
        row: Row = {
            "method": line["method"],
            "ms": line["ms_per_step"]["median"],
            "speedup": line["fp32_over_it"]["median"],
            "loss": line["loss"],
        }
        if line["ranks_bit_equal"] is not None:
            row["equal"] = "yes" if line["ranks_bit_equal"] else "NO"
        if line["mb_per_step_and_rank"] is not None:
            row |= _bytes(1e6 * line["mb_per_step_and_rank"], dense)
        yield about | row
    union = found.union * found.parameters
    yield about | {"method": CALCULATED} | _bytes(lhc.best_bytes(found.parameters, union, ranks), dense)


def _bytes(sent: float, dense: float) -> Row:
    return {"mb": sent / 1e6, "percent_of_dense": 100 * sent / dense}


def _points(workloads: dict[str, int], rates: tuple[int, ...], ranks: int, seeds: int) -> list[Point]:
    return [
        {"workload": workload, "steps": steps, "mbit": mbit, "ranks": ranks, "seed": seed}
        for (workload, steps), mbit, seed in product(workloads.items(), rates, range(seeds))
    ]


EXPERIMENT = Experiment(
    name="sparse",
    title="Sparse training",
    question="How many bytes and how much time does training with mostly zero gradients take, without loss?",
    quick=_points({"ncf-small": 10, "lstm-small": 10}, (1000,), 2, 1),
    full=_points({"ncf": 10, "lstm": 8}, (1000, 10_000), 4, 3),
    measure=measure,
    timed=True,
    columns={
        "workload": "{workload}", "Mbit/s": "{links}", "seed": "{seed}", "method": "{method}",
        "non-zero": "{union_percent:.1f} %", "MB": "{mb:.3f}", "of dense": "{percent_of_dense:.1f} %", "ms": "{ms:.0f}",
        "x fp32": "{speedup:.2f}", "equal": "{equal}",
    },
    chart=Chart(
        x="mbit", y="speedup", series="method", panel="workload", x_label="link rate, Mbit/s",
        y_label="times as fast as fp32", log_x=True, log_y=True,
    ),
    notes="Ranks train in DDP with plain SGD, each in a network namespace if the machine permits it. ms: of a step, by "
    "the slowest rank. x fp32: how many times as fast, the median over steps of the ratio in one step. MB: what a "
    "rank's interface sends in a step, with headers, and its share of a dense ring; on links without a rate it is not "
    "counted. Calculated: the smaller index of lossless homomorphic compression, from the union of the last gradients, "
    "by its formula (sumwire.lab.lhc). Equal: whether ranks end with the same bits. torch-sparse and sumwire-rows have "
    "embeddings with sparse gradients and compute less; sumwire-4 is lossy, and sumwire-auto where that is cheaper.",
)  # fmt: skip
