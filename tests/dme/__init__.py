"""Schemes of every kind, and vectors that are hard for them, for all tests of `sumwire.dme`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
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
from sumwire.dme.vector import LARGEST
from tests.strategies import tensors

Vector = NDArray[np.float32]

SCHEMES = [
    StochasticBinary(),
    StochasticLevels(3, seed=7),
    StochasticLevels(16),
    Rotated(5, block=64),
    VariableLength(),
    VariableLength(16),
    Sampled(Rotated(4), 0.999),  # all of the first clients take part
    Correlated(6, workers=3),
    Drive(),
    Eden(3, block=128, seed=9),
]
RANGED = [scheme for scheme in SCHEMES if isinstance(scheme, StochasticLevels)]
every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=repr)

VECTORS: st.SearchStrategy[Vector] = tensors().map(lambda x: np.clip(x, -LARGEST, LARGEST))
"""Encodable vectors, chosen by hypothesis."""

KINDS = ("gaussian", "equal", "zero", "one-hot", "two-hot", "middle", "unbalanced", "heavy", "ramp", "unequal-two")


def vector(kind: str, d: int, seed: int = 0, k: int = 4) -> Vector:
    """A vector of one of KINDS. Random kinds depend on the seed; `middle` is built for k levels."""
    rng = np.random.default_rng([seed, d])
    x = rng.standard_normal(d)
    if kind == "equal":
        x[:] = -3.0
    elif kind == "heavy":
        x = rng.standard_t(2, d)
    elif kind == "unbalanced":
        x[d // 2] = 100.0
    elif kind == "ramp":
        x = np.linspace(-1, 1, d)
    elif kind != "gaussian":
        x[:] = 0.0
        if kind == "middle":
            # The rest lies halfway between two levels; if 0 is a level, that is half a step away from it.
            x[:] = 0.0 if k % 2 == 0 else 1 / (k - 1)
        if kind != "zero":
            x[d // 3] = 1.0
        if kind in ("two-hot", "middle"):
            x[-1] = -1.0
        elif kind == "unequal-two":
            x[-1] = 0.5
    return x.astype(np.float32)


def halves(d: int) -> Vector:
    """The hardest for `VariableLength` at k = "sqrt": at half steps, an eighth of it at one and a half.

    A step is then 1, as the mean square is 1/2; every coordinate but the lowest, a whole number of steps below, is
    rounded up or down with equal chance. Hardly any other spread has so much entropy.
    """
    x = np.full(d, 0.5, np.float32)
    x[::8] = 1.5
    x[np.random.default_rng(d).permutation(d)[: d // 2]] *= -1
    x[0] = -2.0
    return x


def round_trip(scheme: MeanScheme, x: Any, **where: int) -> Vector:
    return scheme.decode(scheme.encode(x, **where))


def energy(x: Vector) -> float:
    return float(np.square(x.astype(np.float64)).sum())


def rounding_variance(x: Vector, step: float) -> NDArray[np.float64]:
    """Variance of every coordinate under stochastic rounding to levels from the minimum: step^2 f (1 - f)."""
    if step == 0:
        return np.zeros(x.size)
    above = (x.astype(np.float64) - float(x.min())) / step
    fraction = above - np.floor(above)
    return step**2 * fraction * (1 - fraction)


def own_step(x: Vector, k: int) -> float:
    """Step between k levels over the range of the vector."""
    return (float(x.max()) - float(x.min())) / (k - 1)


def norm_step(x: Vector, k: int) -> float:
    """Step between k levels over sqrt(2) times the norm of the vector."""
    return math.sqrt(2 * energy(x)) / (k - 1)
