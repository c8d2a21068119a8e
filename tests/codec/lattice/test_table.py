"""The solver: optimal against brute force, no worse than published, and right about its error."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.codec.lattice import clamping
from sumwire.codec.lattice import table as tables

PUBLISHED = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)


@given(st.integers(1, 3), st.integers(1, 11), st.floats(0.5, 4.5))
def test_no_table_is_better(bits: int, granularity: int, clip: float) -> None:
    if granularity < (1 << bits) - 1:
        granularity += (1 << bits) - 1
    solved = tables.solve(bits, granularity, clip)
    inner = itertools.combinations(range(1, granularity), (1 << bits) - 2)
    best = min(tables.rounding_error((0, *choice, granularity), clip) for choice in inner)
    assert len(solved) == 1 << bits
    assert (solved[0], solved[-1]) == (0, granularity)
    assert all(a < b for a, b in itertools.pairwise(solved))
    assert tables.rounding_error(solved, clip) == pytest.approx(best, rel=1e-9)


def test_no_worse_than_the_published_table() -> None:
    clip = tables.clip_for(1 / 32)
    assert tables.rounding_error(tables.solve(4, 30, clip), clip) <= tables.rounding_error(PUBLISHED, clip)


@pytest.mark.parametrize(
    ("share", "clipped", "errors"),
    [
        (32, 0.00727, (0.01332, 0.01306, 0.01201, 0.01182)),
        (128, 0.00139, (0.02080, 0.01911, 0.01713, 0.01638)),
        (512, 0.00028, (0.02837, 0.02291, 0.02046, 0.01949)),
    ],
)
def test_expected_errors(share: int, clipped: float, errors: tuple[float, ...]) -> None:
    clip = tables.clip_for(1 / share)
    assert tables.clip_error(clip) == pytest.approx(clipped, abs=6e-6)
    for granularity, error in zip((15, 30, 51, 200), errors, strict=True):
        assert tables.rounding_error(tables.solve(4, granularity, clip), clip) == pytest.approx(error, abs=6e-6)


@given(st.integers(1, 5), st.integers(1, 60), st.floats(1.0, 4.0), st.integers(0, 2**32 - 1))
def test_rounding_error_is_what_a_simulation_finds(bits: int, granularity: int, clip: float, seed: int) -> None:
    granularity += (1 << bits) - 1
    table = tables.solve(bits, granularity, clip)
    values = (2 * np.array(table) / granularity - 1) * clip
    x = np.random.default_rng(seed).standard_normal(200_000)
    x = x[np.abs(x) < clip]
    upper = np.searchsorted(values, x, side="right").clip(1, len(values) - 1)
    error = ((x - values[upper - 1]) * (values[upper] - x)).sum() / 200_000
    assert tables.rounding_error(table, clip) == pytest.approx(error, rel=0.05, abs=1e-5)


@pytest.mark.parametrize(("bits", "granularity"), [(1, 1), (2, 15), (3, 31), (4, 63), (5, 63), (6, 63)])
@pytest.mark.parametrize("workers", [1, 4, 30, 256])
@pytest.mark.parametrize("unbiased", [True, False])
def test_the_chosen_range_is_near_the_best(bits: int, granularity: int, workers: int, unbiased: bool) -> None:
    even = granularity == (1 << bits) - 1

    def loss(clip: float) -> float:
        table = tables.uniform(bits, granularity) if even else tables.solve(bits, granularity, clip)
        given = {"stratified": True, "unbiased": unbiased}
        return math.prod(tables.mean_error(table, clip, workers, correlation=r, **given) for r in (0.0, 0.9))

    chosen = loss(tables.best_clip(bits, granularity, workers, True, even, unbiased))
    least = clamping.SMALLEST_RANGE if unbiased else 0.5
    best = min(loss(least + 0.1 * k) for k in range(50))
    assert chosen <= 1.1 * best


@pytest.mark.parametrize("unbiased", [True, False])
def test_the_range_grows_with_the_workers(unbiased: bool) -> None:
    clips = [tables.best_clip(4, 63, n, True, False, unbiased) for n in (1, 4, 16, 64, 256)]
    assert clips == sorted(clips)
    assert clips[-1] > clips[0] + 0.5


def test_large_tables_are_solved_too() -> None:
    table = tables.solve(8, 1020, 3.7)
    assert len(table) == 256
    assert tables.rounding_error(table, 3.7) < tables.rounding_error(tables.uniform(8, 1020), 3.7)
