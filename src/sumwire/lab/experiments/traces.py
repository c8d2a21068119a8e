"""Gradients of every workload, and how far an estimate is from their mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

import sumwire
from sumwire import Lattice
from sumwire.lab.experiments.base import Point
from sumwire.lab.gradients import worker_gradients
from sumwire.lab.workloads import find

Floats = NDArray[np.float32]


def gradients_of(workload: str, workers: int, *, part: float, seed: int) -> list[Floats]:
    """Each worker's gradient after `part` of a workload's steps: 0 is before the first, 1 in mid-training."""
    return worker_gradients(workload, workers, steps=round(part * find(workload).steps), seed=seed)


def noise(workers: int, size: int, correlation: float, seed: int) -> list[Floats]:
    """Normal vectors, any two of which have this correlation: what workers have in common, and what they have not."""
    random = np.random.default_rng(seed)
    common = random.standard_normal(size, np.float32) * np.float32(correlation**0.5)
    own = np.float32((1 - correlation) ** 0.5)
    return [common + own * random.standard_normal(size, np.float32) for _ in range(workers)]


def noise_points(workers: Sequence[int], seeds: int) -> list[Point]:
    """Points of experiments on `noise`: unrelated workers, and similar ones."""
    return [
        {"workers": n, "correlation": correlation, "seed": seed}
        for n, correlation, seed in product(workers, (0.0, 0.5), range(seeds))
    ]


def true_mean(xs: Sequence[Floats]) -> NDArray[np.float64]:
    """In double precision."""
    total = np.zeros(xs[0].shape)
    for x in xs:
        total += x
    return total / len(xs)


def mean_by(codec: Lattice, xs: Sequence[Floats], *, round_id: int = 0) -> Floats:
    """The mean of what workers have, as a codec gives it."""
    return np.asarray(sumwire.average(codec, xs, round_id=round_id))


def nmse(estimate: Floats, exact: NDArray[np.float64]) -> float:
    """Squared error by the squared norm of the exact mean."""
    return float(np.square(estimate - exact).sum() / np.square(exact).sum())


def lattice_row(codec: Lattice, xs: Sequence[Floats], exact: NDArray[np.float64], *, rounds: int) -> dict[str, float]:
    """Error and bits per value of a codec, over rounds with new random numbers."""
    found = [nmse(mean_by(codec, xs, round_id=r), exact) for r in range(rounds)]
    up, down, terms = codec.expected_bits(xs[0].size)
    size = xs[0].size
    return {
        "nmse": float(np.mean(found)),
        "up_bits": (up + terms) / size,
        "down_bits": (down + terms) / size,
        "total_bits": (up + down + 2 * terms) / size,
    }
