"""The Adaptive codec: one choice per round, the same at all workers."""

from __future__ import annotations

import numpy as np
import pytest

from sumwire import ConfigError, Lattice, Sparse, average
from sumwire.codec.adaptive import Adaptive

SIZE = 20_000
CODEC = Adaptive(Lattice(2, 4), Sparse(2))


def tensor(rank: int, density: float) -> np.ndarray:
    rng = np.random.default_rng(rank)
    return (rng.standard_normal(SIZE) * (rng.random(SIZE) < density)).astype(np.float32)


@pytest.mark.parametrize(
    ("densities", "inner"),
    [((0.01, 0.02), CODEC.sparse), ((1.0, 1.0), CODEC.lattice), ((0.01, 1.0), CODEC.lattice)],
)
def test_a_round_has_the_bits_of_the_codec_that_it_chooses(densities, inner) -> None:
    """By the worker that would send most."""
    xs = [tensor(rank, density) for rank, density in enumerate(densities)]
    a, b = map(CODEC.propose, xs)
    assert (a | b).choice == (b | a).choice == (a | b | a).choice == type(inner).__name__
    assert (a | b).digest == (b | a).digest
    np.testing.assert_array_equal(average(CODEC, xs, round_id=3), average(inner, xs, round_id=3))


def test_nan_where_a_lattice_would_be_chosen_is_refused_by_all() -> None:
    """And averaged exactly."""
    xs = [tensor(rank, 1.0) for rank in range(2)]
    xs[1][5] = np.nan
    assert not (CODEC.propose(xs[0]) | CODEC.refuse((SIZE,))).encodable
    np.testing.assert_array_equal(average(CODEC, xs), average(Sparse(2), xs))


def test_float64_is_dense() -> None:
    """A lossless sum in float32 would not be one."""
    assert CODEC.propose(tensor(0, 0.01).astype(np.float64)).choice == "Lattice"


def test_both_codecs_are_for_the_same_workers() -> None:
    with pytest.raises(ConfigError, match="3 workers, the Sparse codec for 2"):
        Adaptive(Lattice(3), Sparse(2))
