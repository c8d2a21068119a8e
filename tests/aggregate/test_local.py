"""A whole round in one process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from sumwire import ConfigError, Lattice, MismatchError, average
from tests.strategies import gradients


@given(gradients(max_workers=5))
def test_average_is_the_four_verbs(xs: list[np.ndarray]) -> None:  # type: ignore[type-arg]
    codec = Lattice(5, 4)
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    total = codec.add([codec.encode(x, terms, rank=r, round_id=9) for r, x in enumerate(xs)])
    assert np.array_equal(average(codec, xs, round_id=9), codec.decode(total))


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
    with pytest.raises(MismatchError, match="shape differs"):
        average(codec, [np.ones(3, np.float32), np.ones(4, np.float32)])
