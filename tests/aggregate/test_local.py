"""A whole round in one process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import ConfigError, Lattice, MismatchError, Residual, average
from tests.strategies import gradients


@given(gradients(max_workers=5))
def test_average_is_the_four_verbs(xs: list[np.ndarray]) -> None:  # type: ignore[type-arg]
    codec = Lattice(5, 4)
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    total = codec.add([codec.encode(x, terms, rank=r, round_id=9) for r, x in enumerate(xs)])
    assert np.array_equal(average(codec, xs, round_id=9), codec.decode(total))


@given(st.integers(0, 2**32 - 1))
def test_residuals_keep_what_does_not_arrive(seed: int) -> None:
    """Three of four tensors, in turn: nothing is counted twice, and nothing gets lost."""
    codec = Lattice(4, 3, block=64, feedback=True)
    rng, memories = np.random.default_rng(seed), [Residual(codec) for _ in range(3)]
    went_in, means = np.zeros(700), np.zeros(700)
    for round_id in range(5):
        xs = rng.standard_normal((3, 700)).astype("f4")
        went_in += xs.sum(axis=0, dtype="f8")
        means += average(codec, xs, round_id=round_id, residuals=memories)
    kept = np.sum([memory.value for memory in memories], axis=0, dtype="f8")
    np.testing.assert_allclose(4 * means + kept, went_in, atol=1e-4)


def test_any_iterable_will_do() -> None:
    codec = Lattice(3, 8)
    rows = np.arange(30, dtype=np.float32).reshape(3, 10)
    expected = average(codec, list(rows))
    assert np.array_equal(average(codec, rows), expected)
    assert np.array_equal(average(codec, (row for row in rows)), expected)


def test_wrong_calls() -> None:
    codec = Lattice(2, 4)
    with pytest.raises(ConfigError, match="nothing to average"):
        average(codec, [])
    with pytest.raises(ConfigError, match="rank 2"):
        average(codec, [np.ones(3, np.float32)] * 3)
    with pytest.raises(ConfigError, match="1 residuals for 2 tensors"):
        average(codec, [np.ones(3, np.float32)] * 2, residuals=[Residual(codec)])
    with pytest.raises(MismatchError, match="codec family differs"):
        average(codec, [np.ones(3, np.float32)], residuals=[Residual(Lattice(3))])
    with pytest.raises(MismatchError, match="shape differs"):
        average(codec, [np.ones(3, np.float32), np.ones(4, np.float32)])
