"""Errors at equal bits, and the solver beside sweeps; and all summaries, from rows that are really measured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.lab.experiments import equal_bits, find, find_summary, sweep
from sumwire.lab.experiments.base import Row
from sumwire.lab.experiments.chart import panels
from sumwire.lab.experiments.table import cells
from tests.lab.experiments.test_time_to_target import timed

OURS = {6.0: 0.16, 8.0: 0.04, 16.0: 0.01}
"""Error of Sumwire by bits in both directions."""


def error(scheme: str, bits: float, nmse: float, *, seed: int = 0, workload: str = "mlp", name: str = "") -> Row:
    point = {"workload": workload, "seed": seed}
    about = {"scheme": scheme, "name": name or scheme, "addable": scheme == "Sumwire"}
    return {"point": point, "total_bits": bits, "nmse": nmse} | point | about


def compared(*lines: Row, ours: dict[float, float] = OURS) -> list[Row]:
    """The summary of these lines, with Sumwire measured at each of their points."""
    places = {(line["seed"], line["workload"]) for line in lines}
    sumwire = [
        error("Sumwire", bits, nmse, seed=seed, workload=workload)
        for seed, workload in sorted(places)
        for bits, nmse in reversed(ours.items())
    ]
    return list(equal_bits.calculate({"accuracy": [*lines, *sumwire]}))


@pytest.mark.parametrize(
    ("bits", "equal"),
    [(8, 0.04), (7, 0.08), (12, 0.02), (5.5, 0.16), (16, 0.01), (17, 0.01)],
    ids=["ours", "between", "between unequal errors", "a little below ours", "our most", "beyond our most"],
)
def test_errors_are_compared_with_ours_at_equal_bits(bits: float, equal: float) -> None:
    (row,) = compared(error("qgz", bits, 3 * equal))
    assert row["ratio"] == pytest.approx(3)
    assert (row["points"], row["ahead"], row["total_bits"], row["addable"]) == (1, 1, bits, False)


@pytest.mark.parametrize("bits", [2, 5.49, 17.01, 64])
def test_at_bits_that_ours_does_not_come_near_there_is_no_row(bits: float) -> None:
    assert compared(error("other", bits, 0.9)) == []


def test_ratios_of_all_points_have_a_geometric_mean_and_a_spread() -> None:
    (row,) = compared(*(error("qgz", 8, ratio * 0.04, seed=seed) for seed, ratio in enumerate((0.5, 1.0, 16.0))))
    assert (row["ratio"], row["lowest"], row["highest"]) == pytest.approx((2, 0.5, 16))
    assert (row["points"], row["ahead"]) == (3, 1)


def test_settings_of_a_scheme_and_workloads_have_rows_of_their_own() -> None:
    lines = [error("qgz", 8, 0.04, name="qgz-4"), error("qgz", 16, 0.04, name="qgz-8")]
    lines.append(error("qgz", 8, 0.08, name="qgz-4", workload="gpt"))
    found = {(row["name"], row["workload"]): row["ratio"] for row in compared(*lines)}
    assert found == pytest.approx({("qgz-4", "mlp"): 1, ("qgz-8", "mlp"): 4, ("qgz-4", "gpt"): 2})


@given(ours=st.dictionaries(st.integers(6, 16), st.floats(1e-9, 1), min_size=1), factor=st.floats(1e-3, 1e3))
def test_a_multiple_of_our_errors_has_this_ratio(ours: dict[float, float], factor: float) -> None:
    (row,) = compared(*(error("qgz", bits, factor * nmse) for bits, nmse in ours.items()), ours=ours)
    assert (row["lowest"], row["ratio"], row["highest"]) == pytest.approx((factor,) * 3)


def swept(*errors: float | None, field: str = "nmse") -> Row:
    """The summary of a sweep, the first of which is the solver's choice; None: diverged."""
    about = {"point": {"bits": 2}, "workload": "mlp", "workers": 4, "bits": 2, "seed": 0}
    lines = [
        about | {"choice": f"g = {k}" if k else "solver", "clip": k / 2} | ({} if value is None else {field: value})
        for k, value in enumerate(errors)
    ]
    sources = {"bits": lines, "bits_training": []} if field == "nmse" else {"bits": [], "bits_training": lines}
    (row,) = sweep.calculate(sources)
    return row


def test_the_solver_is_compared_with_every_other_choice() -> None:
    row = swept(0.2, 0.3, 0.1, 0.2, 0.4)
    assert (row["measured"], row["solver"], row["best"]) == ("one round", 0.2, 0.1)
    assert row["best_choice"] == "g = 2, clamped at 1.00"
    assert (row["beaten"], row["others"], row["wins_percent"]) == (3, 4, 75)


def test_a_choice_that_diverged_is_worse_than_any_other() -> None:
    row = swept(0.2, None, 0.1, None, field="worse")
    assert (row["measured"], row["beaten"], row["others"], row["best"]) == ("training", 2, 3, 0.1)
    assert swept(0.2, None, None, field="worse")["beaten"] == 2


def test_a_solver_that_diverged_beats_nobody() -> None:
    row = swept(None, 0.2, 0.1, field="worse")
    assert (row["beaten"], row["others"]) == (0, 2)
    assert "solver" not in row


@pytest.mark.parametrize("name", ["equal_bits", "time_to_target", "sweep"])
def test_rows_that_are_really_measured_fill_table_and_chart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.lab.experiments.bits.ROUNDS", 1)
    monkeypatch.setattr("sumwire.lab.experiments.accuracy.ROUNDS", 1)
    tiny: dict[str, dict[str, Any]] = {
        "accuracy": {"workload": "mlp", "part": 0.0, "workers": 2, "seed": 0},
        "training": {"workload": "perceptron", "workers": 2, "seed": 0, "steps": 10},
        "bits": {"workload": "mlp", "workers": 2, "bits": 2, "seed": 0},
        "bits_training": {"workload": "perceptron", "metric": "loss", "workers": 2, "bits": 2, "seed": 0, "steps": 1},
    }
    summary = find_summary(name)
    sources: dict[str, list[Row]] = {
        source: [
            {"point": tiny[source]} | tiny[source] | row
            for row in json.loads(json.dumps(list(find(source).measure(tiny[source]))))
        ]
        for source in summary.sources
        if source in tiny
    }
    if name == "time_to_target":
        about = {"workload": "perceptron", "workers": 2}
        sources["throughput"] = [timed(method, 10) | about for method in ("fp32", "bf16", "sumwire-total-16")]
    found = json.loads(json.dumps(list(summary.calculate(sources))))
    assert len(found) > 1
    assert all(all(row) for row in cells(summary, found) if "not reached" not in row)
    assert panels(summary, found)
