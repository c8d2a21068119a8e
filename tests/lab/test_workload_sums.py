"""Real gradients of the sparse workloads, summed without loss by any number of workers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire import Sketch, Sparse, average
from sumwire.lab.gradients import worker_gradients
from tests.lab.test_workloads import TINY

Floats = NDArray[np.float32]

COUNTS = (2, 4, 15, 16, 17, 64)


@pytest.fixture(scope="module", params=["ncf", "lstm", "vgg"])
def of_64_workers(request: pytest.FixtureRequest) -> list[Floats]:
    name = str(request.param)
    return worker_gradients(TINY[name], 64, steps=3, batch=2)


def test_sparse_has_the_bits_of_the_sum_in_rank_order(of_64_workers: list[Floats]) -> None:
    for n in COUNTS:
        xs = of_64_workers[:n]
        total = xs[0].copy()
        for x in xs[1:]:
            total += x
        assert average(Sparse(n), xs).tobytes() == (total / np.float32(n)).tobytes()


def test_sketch_has_the_exact_sum_rounded_once(of_64_workers: list[Floats]) -> None:
    for n in COUNTS:
        xs = of_64_workers[:n]
        stacked = np.stack(xs)
        union = np.flatnonzero(stacked.any(axis=0))
        # fsum rounds once to float64. Rounding that to float32 can only err at a tie, which the codec's own tests,
        # with fractions, cover.
        expected = np.zeros_like(xs[0])
        expected[union] = [math.fsum(column) for column in stacked.T[union].tolist()]
        np.testing.assert_array_equal(average(Sketch(n), xs), expected / np.float32(n))
