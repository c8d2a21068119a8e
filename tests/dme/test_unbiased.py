"""The mean over many rounds is the vector itself, for any vector.

Statistics with fixed seeds. A scheme that rounds rarely but far (a small coordinate beside a huge one) has no
Gaussian mean over some hundred rounds, hence Bernstein's limit: 5 standard errors and 9 jumps per round.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

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
)
from sumwire.dme.vector import StreamKeys
from tests import ON_REFERENCE
from tests.dme import Vector, energy, norm_step, own_step, rounding_variance, vector

ROUNDS = 120 if ON_REFERENCE else 400
MAX_Z = 5.0


class Nearest(StochasticLevels):
    """A biased scheme: it always rounds to the nearest level."""

    def _noise(self, keys: StreamKeys, size: int) -> NDArray[np.uint32]:
        return np.full(size, 1 << 31, np.uint32)


UNBIASED = [
    StochasticBinary(),
    StochasticLevels(5),
    Rotated(2),
    Rotated(6, block=64),
    VariableLength(),
    VariableLength(9),
    Sampled(StochasticLevels(4), 0.3),
    Sampled(Rotated(4), 0.5),
    Correlated(3, workers=5),
]


def samples(scheme: MeanScheme, x: Vector, rounds: int, rank: int = 2) -> NDArray[np.float64]:
    """Errors, one row per round."""
    decoded = [scheme.decode(scheme.encode(x, rank=rank, round_id=r)) for r in range(rounds)]
    return np.array(decoded, dtype=np.float64) - x.astype(np.float64)


def worst_z(errors: NDArray[np.float64]) -> float:
    """Largest deviation of a column's mean from 0, relative to the random deviation that is allowed."""
    rounds = len(errors)
    jump = np.abs(errors).max()
    doubt = errors.std(axis=0, ddof=1) / math.sqrt(rounds) + 9 / MAX_Z * jump / rounds
    return float((np.abs(errors.mean(axis=0)) / (doubt + 1e-30)).max())


def projections(x: Vector) -> NDArray[np.float64]:
    """Projections onto x, which reveal shrinkage, onto the vector of ones, and onto random signs."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (x.size, 20))
    along = x.astype(np.float64) / math.sqrt(energy(x)) if x.any() else np.zeros(x.size)
    return np.column_stack([along, np.ones(x.size), signs]) / math.sqrt(x.size)


def z_scores(scheme: MeanScheme, x: Vector, rounds: int = ROUNDS) -> tuple[float, float]:
    """By coordinate, and by projection."""
    errors = samples(scheme, x, rounds)
    errors[np.abs(errors) < 1e-6 * np.abs(x).max()] = 0.0  # float32 rounds, too
    return worst_z(errors), worst_z(errors @ projections(x))


@pytest.mark.parametrize("kind", ["gaussian", "two-hot", "unbalanced", "heavy", "ramp"])
@pytest.mark.parametrize("scheme", UNBIASED, ids=repr)
def test_unbiased(scheme: MeanScheme, kind: str) -> None:
    coordinate, projection = z_scores(scheme, vector(kind, 50, seed=1), ROUNDS // 4)
    assert coordinate < MAX_Z
    assert projection < MAX_Z


@pytest.mark.parametrize("scheme", UNBIASED, ids=repr)
def test_unbiased_over_many_rounds(scheme: MeanScheme) -> None:
    """Small coordinates count, although the range of the vector is ten times as large."""
    x = vector("gaussian", 90)
    x[17] = 20.0
    coordinate, projection = z_scores(scheme, x)
    assert coordinate < MAX_Z
    assert projection < MAX_Z


FLOATS = st.floats(-100, 100, width=32).map(lambda value: 0.0 if abs(value) < 1e-6 else value)
LEVELS = [StochasticBinary(), StochasticLevels(5), VariableLength(9), Correlated(3, workers=5)]


@settings(max_examples=3 if ON_REFERENCE else 10)
@given(values=st.lists(FLOATS, min_size=1, max_size=12), scheme=st.sampled_from(LEVELS), rank=st.integers(0, 2**32 - 1))
def test_levels_are_unbiased_on_whatever_hypothesis_picks(values: list[float], scheme: Any, rank: int) -> None:
    """The variance is known, and so is Bernstein's bound: at most one vector in ten million violates it by chance."""
    x, rounds = np.array(values, np.float32), 100
    step = (norm_step if isinstance(scheme, VariableLength) else own_step)(x, scheme.k)
    mean = samples(scheme, x, rounds, rank).mean(axis=0)
    limit = 6.5 * np.sqrt(rounding_variance(x, step) / rounds) + 7 * step / rounds
    assert (np.abs(mean) <= limit + 1e-6 * np.abs(x).max()).all()


def test_the_test_would_notice_a_bias() -> None:
    """Rounding to the nearest level fails both tests; shrinkage by one hundredth fails along x."""
    x = vector("gaussian", 90)
    coordinate, projection = z_scores(Nearest(5), x, ROUNDS // 4)
    assert coordinate > MAX_Z
    assert projection > MAX_Z
    errors = samples(StochasticLevels(64), x, ROUNDS) - 0.01 * x
    assert worst_z(errors @ projections(x)) > MAX_Z


@pytest.mark.parametrize("rank", [0, 1, 4, 5, 12])
def test_every_correlated_client_is_unbiased_with_the_variance_of_independent_rounding(rank: int) -> None:
    """For any position in the order, and in the second group as in the first."""
    x, k = vector("gaussian", 60), 3
    errors = samples(Correlated(k, workers=5), x, ROUNDS // 2, rank)
    assert worst_z(errors) < MAX_Z
    expected = rounding_variance(x, own_step(x, k)).sum()
    per_round = np.square(errors).sum(axis=1)
    assert abs(per_round.mean() - expected) < 5 * per_round.std(ddof=1) / math.sqrt(len(errors))


# Eden and Drive, where the Hadamard rotation is not quite the uniformly random one of the law


@pytest.mark.parametrize("make", ["standard_normal", "laplace"])
@pytest.mark.parametrize("scheme", [Drive(), Eden(2), Eden(4)], ids=repr)
def test_eden_is_nearly_unbiased_on_dense_vectors(scheme: MeanScheme, make: str) -> None:
    """A bias would remain when rounds are averaged: the error must fall as 1 / rounds."""
    x = getattr(np.random.default_rng(3), make)(size=1024).astype(np.float32)
    rounds = 30 if ON_REFERENCE else 200
    errors = samples(scheme, x, rounds)
    one, all_ = np.square(errors).sum(axis=1).mean(), np.square(errors.mean(axis=0)).sum()
    assert all_ * rounds / one == pytest.approx(1, abs=0.25)
    # The scale makes the component along x exact in every single round.
    assert np.abs(errors @ x).max() < 1e-5 * energy(x)


def test_eden_is_biased_on_two_unequal_coordinates_as_documented() -> None:
    """The larger one determines every rotated sign, so one bit says nothing about the smaller one.

    A rotated coordinate is +-1 +-0.5 over sqrt(B), and the scale |x|^2 / |Rx|_1 is 1.25 / sqrt(B).
    """
    x = vector("unequal-two", 1024)
    large, small = int(x.argmax()), x.size - 1
    mean = (samples(Drive(), x, 20) + x).mean(axis=0)
    assert mean[large] == pytest.approx(1.25, rel=1e-5)
    assert mean[small] == pytest.approx(0.0, abs=1e-5)
    for bits in (2, 4):
        bias = np.square(samples(Eden(bits), x, 20).mean(axis=0)).sum() / energy(x)
        assert 1e-4 < bias < 0.01


def test_eden_sends_a_single_coordinate_exactly() -> None:
    for d in (1, 64, 1000):
        x = vector("one-hot", d)
        np.testing.assert_allclose(Eden(3).decode(Eden(3).encode(x)), x, atol=1e-6)
