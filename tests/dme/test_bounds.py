"""Measured errors against the published bounds, which are derived again here.

Stochastic rounding to levels that are `step` apart has a variance of at most step^2 / 4 per coordinate. With n
independent clients, the squared error of the mean is the sum of all variances over n^2. For k levels,
step = range / (k-1) and range^2 <= 2 |x|^2, hence d / (2 n (k-1)^2) of the mean squared norm; after a rotation
the expected range^2 is at most 4 (2 ln d + 2) |x|^2 / d. Statistics have fixed seeds; limits are 5 standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import ConfigError
from sumwire.dme import (
    Correlated,
    Drive,
    Eden,
    MeanScheme,
    Rotated,
    Sampled,
    StochasticBinary,
    StochasticLevels,
    VariableLength,
    estimate,
)
from tests import ON_REFERENCE
from tests.dme import KINDS, Vector, energy, halves, norm_step, own_step, rounding_variance, vector

ROUNDS = 3
SIZES = [(3, 2), (64, 4), (200, 1)]
BOUNDED = [
    StochasticBinary(),
    StochasticLevels(3),
    StochasticLevels(16),
    StochasticLevels(1000),
    Rotated(5),
    Rotated(16, block=64),
    VariableLength(),
    VariableLength(16),
    Correlated(4, workers=4),
    Sampled(StochasticLevels(4), 0.5),
    Sampled(Rotated(16), 0.25),
    Sampled(VariableLength(), 0.75),
]


def squared_errors(scheme: MeanScheme, xs: Sequence[Vector], rounds: int) -> tuple[float, float]:
    """Mean over rounds of the mean's squared error, and its standard error.

    A few rounds may happen to agree: the latter is at least that of d Gaussian errors.
    """
    truth = np.mean(xs, axis=0, dtype=np.float64)
    errors = [np.square(estimate(scheme, xs, round_id=r) - truth).sum() for r in range(rounds)]
    spread = max(float(np.std(errors, ddof=1)), float(np.mean(errors)) * math.sqrt(2 / truth.size))
    return float(np.mean(errors)), spread / math.sqrt(rounds)


def clients(kind: str, d: int, n: int, k: int = 4) -> list[Vector]:
    return [vector(kind, d, seed, k) for seed in range(n)]


def levels_of(scheme: MeanScheme, d: int) -> int:
    inner = scheme.scheme if isinstance(scheme, Sampled) else scheme
    return inner.levels(d) if isinstance(inner, VariableLength) else inner.k  # type: ignore[attr-defined]


# The formulas


@given(d=st.integers(1, 1 << 20), n=st.integers(1, 1000), k=st.integers(2, 1 << 16), p=st.floats(0.01, 1.0))
def test_bounds_are_the_published_formulas(d: int, n: int, k: int, p: float) -> None:
    root = math.isqrt(d - 1) + 1 if d > 1 else 1  # ceil(sqrt(d))
    expected = {
        StochasticBinary(): d / (2 * n),
        StochasticLevels(k): d / (2 * n * (k - 1) ** 2),
        Correlated(k): d / (2 * n * (k - 1) ** 2),
        Rotated(k, block=1 << 20): (2 * math.log(d) + 2) / (n * (k - 1) ** 2),
        Rotated(k, block=64): (2 * math.log(min(d, 64)) + 2) / (n * (k - 1) ** 2),
        VariableLength(k): d / (2 * n * (k - 1) ** 2),
        VariableLength(): d / (2 * n * root**2),
        Sampled(StochasticLevels(k), p): d / (2 * n * (k - 1) ** 2) / p + (1 - p) / (n * p),
    }
    for scheme, value in expected.items():
        assert scheme.bound(d, n) == pytest.approx(value, rel=1e-12), scheme
    assert VariableLength().bound(d, n) <= 1 / (2 * n)
    for scheme in (Drive(), Eden(1), Eden(8), Sampled(Drive(), p)):
        assert scheme.bound(d, n) is None


def test_bounds_where_there_is_nothing() -> None:
    assert StochasticLevels(4).bound(0, 3) == 0
    assert Drive().bound(0, 3) == 0
    for n in (0, -1):
        with pytest.raises(ConfigError, match=f"n={n} "):
            StochasticLevels(4).bound(10, n)
    for d in (-1, (1 << 32) + 1):
        with pytest.raises(ConfigError, match=f"d={d} "):
            StochasticLevels(4).bound(d, 1)


# Measured


@pytest.mark.parametrize("scheme", BOUNDED, ids=repr)
def test_measured_error_is_within_the_bound(scheme: MeanScheme) -> None:
    for kind in ("gaussian", "two-hot", "middle", "unbalanced") if ON_REFERENCE else KINDS:
        for d, n in SIZES:
            xs = clients(kind, d, n, levels_of(scheme, d))
            # Few coordinates or few sampled clients give little evidence per round.
            many = d < 64 or isinstance(scheme, Sampled)
            error, doubt = squared_errors(scheme, xs, 20 * ROUNDS if many else ROUNDS)
            bound = scheme.bound(d, n)
            assert bound is not None
            limit = bound * float(np.mean([energy(x) for x in xs]))
            assert 5 * doubt <= limit, "the doubt is too large for a test that could fail"
            assert error <= limit * (1 + 1e-5) + 5 * doubt, (kind, d, n, error / limit)


@pytest.mark.parametrize(("k", "least"), [(2, 0.95), (4, 0.95), (16, 0.95), (17, 0.5)])
def test_levels_come_close_to_their_bound_on_the_worst_vector(k: int, least: float) -> None:
    """+1, -1, and the rest halfway between levels: 1 - 2/d of the bound for even k, a little less for odd."""
    d, n = 300, 2
    for scheme in (StochasticLevels(k), VariableLength(k)):
        xs = clients("middle", d, n, k)
        error, _ = squared_errors(scheme, xs, ROUNDS)
        bound = scheme.bound(d, n) * float(np.mean([energy(x) for x in xs]))
        assert error / bound > least, scheme


def test_variable_length_at_sqrt_comes_close_to_half_of_the_norm() -> None:
    x = halves(900)
    error, _ = squared_errors(VariableLength(), [x], ROUNDS)
    assert 0.49 < error / energy(x) <= 0.5


@pytest.mark.parametrize("k", [2, 4, 16])
@pytest.mark.parametrize("d", [64, 1024])
def test_rotated_is_not_far_from_its_bound_and_saves_what_it_promises(d: int, k: int) -> None:
    """(2 ln d + 2) is loose by a factor of two to four, but without rotation the same vector costs d / 2."""
    xs = clients("middle", d, 1, k)
    rotated, _ = squared_errors(Rotated(k), clients("gaussian", d, 1), ROUNDS)
    assert rotated > 0.2 * Rotated(k).bound(d, 1) * energy(clients("gaussian", d, 1)[0])
    with_it, _ = squared_errors(Rotated(k), xs, ROUNDS)
    without, _ = squared_errors(StochasticLevels(k), xs, ROUNDS)
    assert with_it < 4 * (2 * math.log(d) + 2) / d * without


# Exact errors: the error of stochastic rounding can be computed for any vector


@pytest.mark.parametrize("kind", ["gaussian", "two-hot", "unbalanced", "ramp"])
@pytest.mark.parametrize(
    "scheme",
    [StochasticBinary(), StochasticLevels(3), StochasticLevels(16), VariableLength(), VariableLength(16)],
    ids=repr,
)
def test_error_is_that_of_independent_stochastic_rounding(scheme: MeanScheme, kind: str) -> None:
    """Also between clients: with equal noise, equal vectors would have n times the error."""
    d, n = 100, 4
    xs = clients(kind, d, n)
    k = levels_of(scheme, d)
    step = norm_step if isinstance(scheme, VariableLength) else own_step
    expected = sum(rounding_variance(x, step(x, k)).sum() for x in xs) / n**2
    error, doubt = squared_errors(scheme, xs, 3 * ROUNDS)
    assert abs(error - expected) <= 5 * doubt + 1e-4 * expected + 1e-9


@pytest.mark.parametrize("scheme", [Rotated(4), Eden(2), Sampled(StochasticLevels(4), 0.5)], ids=repr)
def test_clients_err_independently(scheme: MeanScheme) -> None:
    n = 6
    x = vector("gaussian", 128)
    one, doubt_one = squared_errors(scheme, [x], 12 * ROUNDS)
    all_, doubt_all = squared_errors(scheme, [x] * n, 4 * ROUNDS)
    assert abs(n * all_ - one) <= 5 * math.hypot(n * doubt_all, doubt_one)


@pytest.mark.parametrize("p", [0.25, 0.9])
@pytest.mark.parametrize("kind", ["gaussian", "two-hot"])
def test_sampled_error_is_the_exact_formula(kind: str, p: float) -> None:
    """MSE = MSE(scheme) / p + (1-p) / (n p) of the mean squared norm: an equality."""
    d, n, k = 64, 5, 4
    xs = clients(kind, d, n)
    inner = sum(rounding_variance(x, own_step(x, k)).sum() for x in xs) / n**2
    expected = inner / p + (1 - p) / (n * p) * float(np.mean([energy(x) for x in xs]))
    error, doubt = squared_errors(Sampled(StochasticLevels(k), p), xs, 12 * ROUNDS)
    assert abs(error - expected) <= 5 * doubt + 1e-4 * expected


# Correlated


@pytest.mark.parametrize("kind", KINDS)
def test_correlated_is_never_worse_than_independent(kind: str) -> None:
    d, n, k = 100, 4, 4
    xs = clients(kind, d, n, k)
    independent = sum(rounding_variance(x, own_step(x, k)).sum() for x in xs) / n**2
    # The right number of workers, too many, and groups of which the last is incomplete.
    for workers in (4, 16, 3):
        error, doubt = squared_errors(Correlated(k, workers=workers), xs, ROUNDS)
        assert error <= independent + 5 * doubt + 1e-9


@pytest.mark.parametrize(("n", "gain"), [(2, 1.5), (8, 5.0), (16, 10.0)])
def test_correlated_errors_cancel_between_equal_vectors(n: int, gain: float) -> None:
    d, k = 128, 4
    x = vector("gaussian", d)
    independent = rounding_variance(x, own_step(x, k)).sum() / n
    error, _ = squared_errors(Correlated(k, workers=n), [x] * n, ROUNDS)
    assert error < independent / gain
    # Nearly equal vectors, but each with its own range.
    xs = [np.float32(1 + 0.01 * rank) * x for rank in range(n)]
    error, _ = squared_errors(Correlated(k, workers=n), xs, ROUNDS)
    assert error < independent / (0.8 * gain)


def test_correlated_groups_beyond_its_workers_are_independent() -> None:
    """Eight clients in two groups of four: half the error of four."""
    x = vector("gaussian", 128)
    scheme = Correlated(4, workers=4)
    four, doubt = squared_errors(scheme, [x] * 4, 4 * ROUNDS)
    eight, doubt_eight = squared_errors(scheme, [x] * 8, 4 * ROUNDS)
    assert abs(2 * eight - four) <= 5 * math.hypot(doubt, 2 * doubt_eight)


# Eden and Drive: no bound, but a published error


@pytest.mark.parametrize(
    ("scheme", "published"),
    [(Drive(), math.pi / 2 - 1), (Eden(1), 0.571), (Eden(2), 0.133), (Eden(3), 0.036), (Eden(4), 0.0096)],
    ids=repr,
)
def test_eden_has_the_published_error(scheme: MeanScheme, published: float) -> None:
    n = 2
    xs = clients("gaussian", 4096, n)
    error, _ = squared_errors(scheme, xs, 10 if ON_REFERENCE else 24)
    assert error / float(np.mean([energy(x) for x in xs])) == pytest.approx(published / n, rel=0.03)


def test_drive_is_eden_of_one_bit() -> None:
    x = vector("heavy", 500)
    assert np.array_equal(
        Drive(seed=5).decode(Drive(seed=5).encode(x)), Eden(1, seed=5).decode(Eden(1, seed=5).encode(x))
    )
