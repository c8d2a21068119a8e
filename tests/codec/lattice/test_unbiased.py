"""Each worker's payload is unbiased inside the range, and stratified workers cancel each other.

Statistics with fixed seeds: a correct codec fails a bound below with probability under 1e-6 per
test (the z-scores' Bonferroni bound for the number of coordinates), a biased one almost surely.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire import Lattice
from sumwire.codec.lattice.terms import LatticeTerms
from tests import ON_REFERENCE

ROUNDS = 400
MAX_Z = 6.5  # 1000 coordinates, two-sided 1e-6, Student t with 399 degrees of freedom


def estimates(codec: Lattice, x: NDArray[np.float32], rank: int) -> NDArray[np.float64]:
    """Decodes of many rounds, under terms so wide that nothing is clamped."""
    terms = codec.propose(x) | codec.propose(2 * x)
    assert isinstance(terms, LatticeTerms)
    return np.array([codec.decode(codec.encode(x, terms, rank=rank, round_id=r)) for r in range(ROUNDS)], dtype="f8")


def z_scores(samples: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    return (samples.mean(axis=0) - truth) / (samples.std(axis=0, ddof=1) / np.sqrt(ROUNDS) + 1e-30)


@pytest.mark.parametrize("bits", (1, 4, 7) if ON_REFERENCE else range(1, 9))
@pytest.mark.parametrize("rounding", ["stratified", "independent"])
def test_every_coordinate_is_unbiased(bits: int, rounding: str) -> None:
    x = np.random.default_rng(bits).standard_normal(1000).astype("f4")
    codec = Lattice(4, bits, rounding=rounding, clip=1 / 4096, seed=bits, widths="fixed")  # type: ignore[arg-type]
    samples = estimates(codec, x, rank=bits % 4)
    z = z_scores(samples, x.astype("f8"))
    assert np.abs(z).max() < MAX_Z
    # Shrinkage would show along x itself, with all coordinates pulling the same way.
    along = samples @ x.astype("f8")
    assert abs(z_scores(along[:, None], np.array([np.square(x.astype("f8")).sum()]))[0]) < 5.5


def test_a_smaller_table_on_the_same_lattice_is_unbiased() -> None:
    x = np.random.default_rng(1).standard_normal(1000).astype("f4")
    codec = Lattice(4, 5, clip=1 / 4096).with_bits(2)
    assert np.abs(z_scores(estimates(codec, x, rank=3), x.astype("f8"))).max() < MAX_Z


def test_small_coordinates_beside_a_spike_are_not_lost() -> None:
    """Entering integers rounds by chance: plain rounding would drop all of these."""
    x = np.full(1024, 0.1, np.float32)
    x[100] = 1000.0
    codec = Lattice(2, 4, block=1024, clip=1 / 4096, widths="fixed")
    samples = estimates(codec, x, rank=0)
    quiet = np.delete(samples, 100, axis=1).sum(axis=1)
    z = (quiet.mean() - 102.3) / (quiet.std(ddof=1) / np.sqrt(ROUNDS))
    assert abs(z) < 5.5
    assert quiet.mean() / (quiet.std(ddof=1) / np.sqrt(ROUNDS)) > 5.5  # zero would have been noticed


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_errors_of_different_blocks_are_independent(bits: int) -> None:
    """Sums over rows that are a block long have the variance of independent errors (3000 rows, 512 columns)."""
    x = np.random.default_rng(0).standard_normal((3000, 512)).astype("f4")
    codec = Lattice(1, bits, block=512, widths="fixed")
    error = codec.decode(codec.encode(x, codec.propose(x), rank=0)).astype("f8") - x
    ratio = np.square(error.sum(axis=0)).sum() / np.square(error).sum()
    assert abs(ratio - 1) < 5.5 * np.sqrt(2 / 512)


@pytest.mark.parametrize(("workers", "gain"), [(4, 1.25), (30, 1.4)])
def test_stratified_beats_independent_for_unrelated_gradients(workers: int, gain: float) -> None:
    errors = {}
    for rounding in ("stratified", "independent"):
        codec = Lattice(workers, 4, rounding=rounding, granularity=60, clip=1 / 512, widths="fixed")  # type: ignore[arg-type]
        errors[rounding] = nmse(codec, workers, correlation=0.0)
    assert errors["independent"] / errors["stratified"] >= gain


@pytest.mark.parametrize("rounding", ["stratified", "independent"])
@pytest.mark.parametrize("workers", [2, 8])
def test_equal_gradients(workers: int, rounding: str) -> None:
    """Errors of equal gradients fall as 1/n^2 when stratified, as 1/n when independent."""
    x = np.random.default_rng(0).standard_normal(1 << 14).astype("f4")
    codec = Lattice(workers, 4, rounding=rounding, clip=1 / 4096, table="uniform", widths="fixed")  # type: ignore[arg-type]
    terms = codec.propose(x)
    payloads = [codec.encode(x, terms, rank=r) for r in range(workers)]
    one = np.mean([np.square(codec.decode(p) - x).mean() for p in payloads])
    all_ = np.square(codec.decode(codec.add(payloads)) - x).mean()
    expected = workers**2 if rounding == "stratified" else workers
    assert 0.8 < one / all_ / expected < 1.25


def nmse(codec: Lattice, workers: int, correlation: float, size: int = 1 << 15, rounds: int = 3) -> float:
    """Measured error of the mean of Gaussian gradients over its power."""
    error = power = 0.0
    for r in range(rounds):
        rng = np.random.default_rng(r)
        common = rng.standard_normal(size)
        xs = [
            (np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.standard_normal(size)).astype("f4")
            for _ in range(workers)
        ]
        mean = np.mean(xs, axis=0, dtype="f8")
        terms = codec.propose(xs[0])
        for x in xs[1:]:
            terms = terms | codec.propose(x)
        total = codec.add([codec.encode(x, terms, rank=k, round_id=r) for k, x in enumerate(xs)])
        error += float(np.square(codec.decode(total.narrow()) - mean).sum())
        power += float(np.square(mean).sum())
    return error / power
