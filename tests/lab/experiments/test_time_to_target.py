"""Time to a target: laws of curves of scores, and rows calculated from hand-made ones."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.lab.experiments.base import Row
from sumwire.lab.experiments.time_to_target import SHARE, calculate, steps_to, target

Scores = list[tuple[int, float]]


@st.composite
def curves(draw: st.DrawFn) -> Scores:
    """Evaluations of a run: at equal distances, without order in their scores."""
    every = draw(st.integers(1, 10))
    values = draw(st.lists(st.floats(-10, 10), min_size=2, max_size=20))
    return [(every * k, value) for k, value in enumerate(values, start=1)]


@given(scores=curves(), goal=st.floats(-12, 12), sign=st.sampled_from([1, -1]))
def test_a_goal_is_met_on_the_curve_and_nowhere_before(scores: Scores, goal: float, sign: int) -> None:
    steps = steps_to(scores, goal, sign)
    meets = [step for step, score in scores if sign * score >= sign * goal]
    if steps is None:
        assert not meets
    elif meets[0] == scores[0][0]:
        assert steps == meets[0]
    else:
        (before,) = (a for a, b in pairwise(dict(scores)) if b == meets[0])
        assert before <= steps <= meets[0]
        assert np.interp(steps, *zip(*scores, strict=True)) == pytest.approx(goal, abs=1e-6)


@given(scores=curves(), goal=st.floats(-12, 12))
def test_losses_fall_as_accuracies_rise(scores: Scores, goal: float) -> None:
    mirrored = [(step, -score) for step, score in scores]
    assert steps_to(scores, goal, 1) == steps_to(mirrored, -goal, -1)


@given(scores=curves(), sign=st.sampled_from([1, -1]))
def test_who_sets_the_target_reaches_it_within_its_share_of_steps(scores: Scores, sign: int) -> None:
    goal, latest = target(scores), SHARE * scores[-1][0]
    assert goal == [score for step, score in scores if step <= latest][-1]
    steps = steps_to(scores, goal, sign)
    assert steps is not None
    assert steps <= latest


FP32 = [0.5, 0.6, 0.7, 0.8]
"""Scores after 5, 10, 15 and 20 steps: the target is that after 10."""


def trained(method: str, values: list[float], *, over_links: str = "", seed: int = 0, workload: str = "bert") -> Row:
    point = {"workload": workload, "workers": 4, "seed": seed}
    scores = [[5 * k, value] for k, value in enumerate(values, start=1)]
    about = {"method": method, "scheme": method, "over_links": over_links, "total_bits": 64.0}
    return {"point": point, "scores": scores} | about | point


def timed(method: str, ms: float, *, rate: float = 1e9, workers: int = 4, workload: str = "bert") -> Row:
    about = {"workload": workload, "workers": workers, "rate": rate, "where": f"{workload}, {rate:g}"}
    return about | {"method": method, "ms": ms, "both_bits": 64.0}


def times(training: list[Row], throughput: list[Row]) -> list[Row]:
    return list(calculate({"training": training, "throughput": throughput}))


def test_time_is_steps_times_what_a_step_takes() -> None:
    runs = [
        trained("fp32", FP32, over_links="fp32", workload="perceptron"),
        trained("Sumwire, 4 bits up", [0.4, 0.5, 0.7, 0.8], over_links="sumwire-4", workload="perceptron"),
    ]
    steps = [
        timed("fp32", 100, workload="perceptron"),
        timed("sumwire-4", 20, workload="perceptron"),
        timed("sumwire-4", 40, rate=1e8, workload="perceptron"),
    ]
    found = [(row["method"], row["rate"], row["steps"], row["seconds"], row["when"]) for row in times(runs, steps)]
    assert found == [
        ("fp32", 1e9, 10, 1.0, "1.00"),
        ("Sumwire, 4 bits up", 1e9, pytest.approx(12.5), pytest.approx(0.25), "0.25"),
        ("Sumwire, 4 bits up", 1e8, pytest.approx(12.5), pytest.approx(0.5), "0.50"),
    ]
    fp32, ours, _ = times(runs, steps)
    assert (fp32["over_fp32"], ours["over_fp32"]) == (1, pytest.approx(4))
    assert all(row["target"] == 0.6 for row in times(runs, steps))


def test_of_losses_the_lower_is_the_better_and_who_does_not_arrive_has_no_time() -> None:
    runs = [
        trained("fp32", [4.0, 3.0, 2.0, 1.0], over_links="fp32"),
        trained("slow", [9.0, 8.0, 3.1], over_links="bf16"),
    ]
    fp32, slow = times(runs, [timed(method, 10) for method in ("fp32", "bf16")])
    assert (fp32["when"], slow["when"]) == ("0.10", "not reached")
    assert not {"steps", "seconds", "over_fp32"} & set(slow)


def test_who_diverges_before_the_first_evaluation_does_not_arrive() -> None:
    runs = [trained("fp32", [4.0, 3.0, 2.0, 1.0], over_links="fp32"), trained("diverged", [], over_links="bf16")]
    assert [row["when"] for row in times(runs, [timed("fp32", 10), timed("bf16", 10)])] == ["0.10", "not reached"]


def test_without_times_over_links_there_is_no_row() -> None:
    runs = [trained("fp32", FP32, over_links="fp32"), trained("THC", FP32)]
    assert times(runs, [timed("fp32", 10, workers=8), timed("fp32", 10, workload="gpt-small")]) == []
    assert [row["method"] for row in times(runs, [timed("fp32", 10), timed("fp16", 10)])] == ["fp32"]


def test_schemes_with_points_of_their_own_have_the_target_of_the_others() -> None:
    fp32 = trained("fp32", FP32, over_links="fp32", workload="perceptron")
    apart = trained("apart", FP32, over_links="bf16", workload="perceptron")
    apart["point"] = apart["point"] | {"schemes": "apart"}
    steps = [timed("fp32", 10, workload="perceptron"), timed("bf16", 20, workload="perceptron")]
    assert [(row["method"], row["target"], row["seconds"]) for row in times([apart, fp32], steps)] == [
        ("fp32", 0.6, pytest.approx(0.1)), ("apart", 0.6, pytest.approx(0.2)),
    ]  # fmt: skip
    assert times([apart], steps) == []


def test_targets_are_those_of_fp32_with_the_same_seed() -> None:
    runs = [
        trained(method, [value + seed for value in FP32], over_links=method, seed=seed)
        for seed in (0, 1)
        for method in ("bf16", "fp32")  # whatever comes first
    ]
    found = times(runs, [timed("bf16", 10), timed("fp32", 20)])
    assert {(row["seed"], row["method"]): row["target"] for row in found} == {
        (seed, method): 0.6 + seed for seed in (0, 1) for method in ("bf16", "fp32")
    }
    assert [row["over_fp32"] for row in found if row["method"] == "bf16"] == pytest.approx([2, 2])
