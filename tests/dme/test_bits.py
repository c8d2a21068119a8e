"""The actual size of messages, including every byte."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests import ON_REFERENCE
from tests.dme import Vector, energy, halves, vector

FIXED = [
    StochasticBinary(),
    *(StochasticLevels(k) for k in (2, 3, 4, 5, 16, 17, 200, 256, 257, 65536)),
    *(Rotated(k) for k in (2, 7, 16, 1000)),
    Rotated(16, block=64),
    Correlated(6, workers=3),
    Drive(),
    *(Eden(bits) for bits in (1, 2, 3, 4, 5, 6)),
    Eden(3, block=128),
]
SPREAD = ("gaussian", "uniform", "laplace", "heavy", "cauchy", "one-hot", "two-hot", "equal", "ramp", "halves")


def spread(kind: str, d: int, seed: int = 0) -> Vector:
    """Vectors from zero entropy to the maximum for `VariableLength`."""
    rng = np.random.default_rng([seed, d])
    if kind == "halves":
        return halves(d)
    if kind in ("uniform", "laplace"):
        return getattr(rng, kind)(-1.0, 1.0, d).astype(np.float32)
    if kind == "cauchy":
        return rng.standard_cauchy(d).astype(np.float32)
    return vector(kind, d, seed)


def sent(scheme: MeanScheme, x: Vector, **where: int) -> int:
    return 8 * len(scheme.encode(x, **where))


@pytest.mark.parametrize("scheme", FIXED, ids=repr)
def test_fixed_lengths_are_exact(scheme: MeanScheme) -> None:
    for d in (0, 1, 7, 127, 128, 1000, 4097):
        assert scheme.bits(d) == sent(scheme, vector("gaussian", d) if d else np.empty(0, np.float32), rank=5), d
    assert scheme.bits(100) == sent(scheme, vector("heavy", 100), rank=127, round_id=127)


@given(d=st.integers(1, 1 << 24), k=st.integers(2, 1 << 16))
def test_fixed_lengths_are_what_is_published(d: int, k: int) -> None:
    """d ceil(log2 k) in whole bytes, plus what docs/dme.md lists."""
    width = math.ceil(math.log2(k))
    packed = 8 * math.ceil(d * width / 8)
    head = 8 * (4 + 1 + 1 + max(1, math.ceil(d.bit_length() / 7)) + 1 + 1 + 4)
    whole, rest = divmod(d, 4096)
    blocks = whole + rest.bit_count()
    assert StochasticLevels(k).bits(d) == head + 64 + packed
    assert Correlated(k).bits(d) == head + 64 + packed
    assert Rotated(k).bits(d) == head + 64 * blocks + packed
    assert Drive().bits(d) == head + 32 * blocks + 8 * math.ceil(d / 8)
    assert Eden(3).bits(d) == head + 32 * blocks + 8 * math.ceil(3 * d / 8)
    assert Sampled(StochasticLevels(k), 0.25).bits(d) == head + (64 + packed) / 4


# VariableLength: the size depends on the vector


@pytest.mark.parametrize("k", ["sqrt", 16, 200])
@pytest.mark.parametrize("d", [64, 100, 1024, 5000, 1 << 14, 1 << 17])
def test_variable_length_stays_within_its_bits(d: int, k: int | str) -> None:
    scheme = VariableLength(k)  # type: ignore[arg-type]
    few = ON_REFERENCE and d > 10_000
    for kind in ("gaussian", "two-hot", "halves") if few else SPREAD:
        assert sent(scheme, spread(kind, d)) <= scheme.bits(d), kind


def test_variable_length_bits_are_the_published_formula() -> None:
    for d, k in ((64, 9), (1024, 33), (1024, 200), (100_000, 16)):
        published = d * (2 + math.log2((k - 1) ** 2 / (2 * d) + 5 / 4)) + k * math.log2((d + k) * math.e / k)
        # O~(1): a header of at most 15 bytes, the range, and the final state of the coder
        assert published < VariableLength(k).bits(d) <= published + 8 * 15 + 64 + 64
    for d, k in ((0, 2), (1, 2), (2, 3), (4, 3), (5, 4), (1024, 33), (1025, 34), (1 << 20, 1025)):
        assert VariableLength().levels(d) == k  # ceil(sqrt(d)) + 1


@pytest.mark.parametrize("d", [1024, 1025, 1500, 4096, 1 << 15])
def test_at_sqrt_2_8_bits_a_dimension_buy_half_of_the_norm(d: int) -> None:
    """The size that the paper claims, for the whole message, on the hardest known vectors. Measured: at most 2.13."""
    scheme, rounds = VariableLength(), 4
    for kind in ("gaussian", "laplace", "halves") if ON_REFERENCE else SPREAD:
        x = spread(kind, d)
        errors = []
        for round_id in range(rounds):
            message = scheme.encode(x, round_id=round_id)
            assert 8 * len(message) <= 2.8 * d, kind
            errors.append(np.square(scheme.decode(message).astype(np.float64) - x).sum() / energy(x))
        # The spread of the mean over rounds of a sum of d errors
        assert np.mean(errors) <= 0.5 * (1 + 5 * math.sqrt(2 / (d * rounds))), kind


def test_halves_are_harder_than_anything_else() -> None:
    """The limit above is exercised: these vectors take many more bits than Gaussian ones."""
    d = 4096
    bits = {kind: sent(VariableLength(), spread(kind, d)) / d for kind in SPREAD}
    assert max(bits, key=bits.__getitem__) == "halves"
    assert 1.85 < bits["halves"] < 2.0
    assert bits["equal"] < 0.1


@given(seed=st.integers(0, 2**32 - 1), power=st.floats(0.2, 4.0), d=st.sampled_from([1024, 1025, 1600]))
def test_no_other_spread_needs_2_8_bits(seed: int, power: float, d: int) -> None:
    """From flat to heavy-tailed, on a grid or not, with any minimum."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(1 / power, size=d) ** power * rng.choice([-1, 1], d)
    if rng.random() < 0.5:
        x = np.rint(2 * x / math.sqrt(np.square(x).mean())) + 0.5
    x[0] = x.min() - rng.random()
    assert sent(VariableLength(), x.astype(np.float32)) <= 2.5 * d


# Sampled: on average


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("inner", [StochasticLevels(5), Eden(2)], ids=repr)
def test_sampled_bits_are_the_average(inner: MeanScheme, p: float) -> None:
    scheme, x = Sampled(inner, p), vector("gaussian", 40)
    where = [{"rank": rank, "round_id": r} for r in range(2) for rank in range(90)]
    lengths = [sent(scheme, x, **one) for one in where]
    full, empty = inner.bits(40), scheme.bits(40) - p * inner._body_bits(40)
    assert lengths == [full if scheme.takes_part(**one) else empty for one in where]
    assert abs(np.mean(lengths) - scheme.bits(40)) <= 5 * (full - empty) * math.sqrt(p * (1 - p) / len(where))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
def test_clients_take_part_with_probability_p(p: float) -> None:
    """Sampling is independent over ranks, rounds and seeds."""
    n = 3000
    inner = StochasticLevels(4)
    limit = 5 * math.sqrt(p * (1 - p) / n)
    assert abs(np.mean([Sampled(inner, p).takes_part(rank=r, round_id=9) for r in range(n)]) - p) < limit
    assert abs(np.mean([Sampled(inner, p).takes_part(rank=4, round_id=r) for r in range(n)]) - p) < limit
    assert abs(np.mean([Sampled(inner, p, seed=r).takes_part(rank=4) for r in range(n)]) - p) < limit
