"""The solver's choice of granularity and clipping beside the best of a sweep, in one round and in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sumwire.lab.experiments.base import Chart, Row, Summary

SOLVER = "solver"


def calculate(sources: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    """A row for each sweep: the error of the solver's choice, of the best one, and how many others are worse."""
    for name, field in (("bits", "nmse"), ("bits_training", "worse")):
        sweeps: dict[str, list[Row]] = {}
        for line in sources[name]:
            sweeps.setdefault(str(line["point"]), []).append(line)
        for lines in sweeps.values():
            yield {"measured": "one round" if name == "bits" else "training"} | _row(lines, field)


def _row(lines: Sequence[Row], field: str) -> Row:
    solver = next(line for line in lines if line["choice"] == SOLVER)
    others = [line for line in lines if line["choice"] != SOLVER]
    # A choice that diverged has no error, and is worse than any that has.
    finished = [line for line in others if field in line]
    found: Row = {key: solver[key] for key in ("workload", "workers", "bits", "seed")}
    beaten = len(others) - sum(line[field] < solver[field] for line in finished) if field in solver else 0
    found |= {"others": len(others), "beaten": beaten, "wins_percent": 100 * beaten / len(others)}
    if field in solver:
        found |= {"solver": solver[field]}
    if finished:
        best = min(finished, key=lambda line: float(line[field]))
        found |= {"best": best[field], "best_choice": f"{best['choice']}, clamped at {best['clip']:.2f}"}
    return found


SUMMARY = Summary(
    name="sweep",
    title="The solver's choice",
    question="Does the solver's choice of granularity and clipping win over a sweep, in one round and in training?",
    sources=("bits", "bits_training"),
    calculate=calculate,
    columns={
        "in": "{measured}", "workload": "{workload}", "bits": "{bits}", "seed": "{seed}", "solver": "{solver:.5f}",
        "best of the sweep": "{best:.5f}", "which": "{best_choice}", "at least as good as": "{beaten} of {others}",
    },
    chart=Chart(
        x="bits", y="wins_percent", series="workload", panel="measured", x_label="bits up",
        y_label="choices that are no better, %",
    ),
    notes="In one round, errors are the NMSE of the mean; in training, how much worse than fp32 the loss of held-out "
    "samples is. Fixed widths and exact sums, so that only the table differs. The sweep's best choice is known only "
    "afterwards, and in training some choice is best by chance.",
)  # fmt: skip
