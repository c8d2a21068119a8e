"""Time to a target on every workload: steps that training needs, times what a step takes over the links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sumwire.lab.experiments.base import Chart, Row, Summary
from sumwire.lab.experiments.schemes import BASE
from sumwire.lab.links import format_rate
from sumwire.lab.workloads import find

SHARE = 0.6
"""Of its steps, after which fp32 has reached the target: its curve is no longer steep, nor flat yet."""


def calculate(sources: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    """A row for each seed of a training and each of the links that its steps were timed over."""
    times: dict[tuple[str, int, str], list[Row]] = {}
    for line in sources["throughput"]:
        times.setdefault((line["workload"], line["workers"], line["method"]), []).append(line)
    goals = {_run(line): target(line["scores"]) for line in sources["training"] if line["method"] == BASE}
    dense: dict[tuple[str, str], float] = {}
    # fp32 comes first in every run: others are compared with it.
    for line in sorted(sources["training"], key=lambda line: line["method"] != BASE):
        goal = goals.get(_run(line))
        if goal is None:
            continue  # schemes with points of their own, before those with fp32 were measured
        steps = steps_to(line["scores"], goal, find(line["workload"]).sign)
        for timed in times.get((line["workload"], line["workers"], line["over_links"]), []):
            row = {
                "where": timed["where"], "links": f"{format_rate(timed['rate'])}, {line['workers']} workers",
                "workload": line["workload"], "rate": timed["rate"], "workers": line["workers"], "seed": line["seed"],
                "method": line["method"], "scheme": line["scheme"], "total_bits": line["total_bits"], "target": goal,
                "ms": timed["ms"], "both_bits": timed["both_bits"], "when": "not reached",
            }  # fmt: skip
            if steps is not None:
                seconds = steps * timed["ms"] / 1e3
                base = dense.setdefault((_run(line), timed["where"]), seconds)
                row |= {"steps": steps, "seconds": seconds, "when": f"{seconds:.2f}", "over_fp32": base / seconds}
            yield row


def _run(line: Row) -> str:
    """The same for all methods that are compared with each other."""
    return f"{line['workload']}, {line['workers']} workers, seed {line['seed']}"


def target(scores: Sequence[tuple[int, float]]) -> float:
    """What is reached after `SHARE` of the steps.

    >>> target([(5, 4.0), (10, 3.0), (15, 2.0), (20, 1.5)])
    3.0
    """
    return max((step, score) for step, score in scores if step <= SHARE * scores[-1][0])[1]


def steps_to(scores: Sequence[tuple[int, float]], goal: float, sign: int) -> float | None:
    """Steps after which the goal is first met, on a straight line between evaluations; None: never.

    >>> steps_to([(5, 3.0), (10, 2.0)], goal=2.5, sign=-1)
    7.5
    """
    before: tuple[int, float] | None = None
    for step, score in scores:
        if sign * score >= sign * goal:
            if before is None:
                return float(step)
            earlier, lower = before
            return earlier + (step - earlier) * (goal - lower) / (score - lower)
        before = step, score
    return None


SUMMARY = Summary(
    name="time_to_target",
    title="Time to a target on every workload",
    question="How soon does each scheme reach the target of each workload, over links of several rates?",
    sources=("training", "throughput"),
    calculate=calculate,
    columns={
        "links": "{where}", "seed": "{seed}", "method": "{method}", "s to target": "{when}", "steps": "{steps:.1f}",
        "ms/step": "{ms:.1f}", "both": "{both_bits:.2f}", "x fp32": "{over_fp32:.2f}", "target": "{target:.4g}",
    },
    chart=Chart(
        x="total_bits", y="over_fp32", series="scheme", panel="links", x_label="bits per value, both directions",
        y_label="times as fast as fp32 to the target", log_x=True, log_y=True, x_digits=1,
    ),
    notes="Steps come from experiment training, in which all workers are one process, milliseconds from experiment "
    "throughput, in which they are real ranks behind slow links: what a synchronous step does to the model does not "
    "depend on how long it took. Targets are what fp32 with the same seed has after 60 % of its steps. "
    "Between evaluations, scores lie on a straight line. Evaluations take no time. The chart has means over workloads "
    "and seeds that reached the target, of nominal bits; on the wire, headers come on top.",
)  # fmt: skip
