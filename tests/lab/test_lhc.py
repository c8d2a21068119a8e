"""The model of the paper's bytes: equal to manual calculation, and as favorable to the paper as it claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.lab import lhc

SIZE = 1 << 20
UNIONS = st.integers(1, SIZE)


def percent_of_dense(union: float, workers: int) -> float:
    return 100 * lhc.best_bytes(SIZE, union / 100 * SIZE, workers) / lhc.dense_bytes(SIZE, workers)


@pytest.mark.parametrize(
    ("workers", "union", "expected"),
    [(4, 0.35, 0.65), (64, 3.6, 6.3), (16, 9.7, 15.3), (16, 9.2, 14.7), (64, 26, 36), (16, 60, 79), (64, 100, 128)],
)
def test_reproduces_the_figures_of_an_independent_prototype(workers: int, union: float, expected: float) -> None:
    assert percent_of_dense(union, workers) == pytest.approx(expected, rel=0.02)


def test_bitmap_by_hand() -> None:
    # 2 * 3/4 * (1000/8 + 4 * 1.26 * 500)
    assert lhc.best_bytes(1000, 500, 4) == pytest.approx(1.5 * (125 + 2520))
    assert lhc.dense_bytes(1000, 4) == 6000


@given(UNIONS, st.floats(0, 64))
def test_no_filter_beats_the_best_one(union: int, bits: float) -> None:
    best = lhc.bloom_bytes(SIZE, union, lhc.best_bloom_bits(SIZE, union))
    assert best <= lhc.bloom_bytes(SIZE, union, bits) * (1 + 1e-12)


def test_bits_of_the_best_filter_fall_with_the_density_until_none_is_left() -> None:
    bits = [lhc.best_bloom_bits(SIZE, density * SIZE) for density in (0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 1)]
    assert bits == sorted(bits, reverse=True)
    assert 15 < bits[2] < 17  # lets one zero in 2,000 pass: 5 % more cells at this density
    assert bits[-1] == 0


def test_false_positives_are_those_of_a_real_filter() -> None:
    rng, size, union, bits, hashes = np.random.default_rng(0), 200_000, 2_000, 10, 7
    filled = np.zeros(bits * union, np.bool_)
    filled[rng.integers(len(filled), size=(union, hashes))] = True
    passed = filled[rng.integers(len(filled), size=(size - union, hashes))].all(axis=1).sum()
    assert lhc.false_positives(size, union, bits) == pytest.approx(passed, rel=0.1)


@given(UNIONS, UNIONS, st.integers(2, 100))
def test_more_non_zeros_never_cost_less(a: int, b: int, workers: int) -> None:
    few, many = sorted((a, b))
    assert lhc.best_bytes(SIZE, few, workers) <= lhc.best_bytes(SIZE, many, workers) * (1 + 1e-12)


@given(UNIONS, st.integers(2, 100))
def test_between_the_bare_cells_and_cells_for_all(union: int, workers: int) -> None:
    cells = lhc.ring_share(workers) * lhc.CELL_BYTES * lhc.CELLS
    assert cells * union <= lhc.best_bytes(SIZE, union, workers) <= cells * SIZE * (1 + 1e-12)


def test_an_empty_union_costs_nothing_and_a_single_worker_sends_nothing() -> None:
    assert lhc.best_bytes(SIZE, 0, 4) == 0
    assert lhc.best_bytes(SIZE, 1000, 1) == 0
