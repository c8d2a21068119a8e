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
from sumwire.lab.simulate import ByCodec
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


def mean_by(codec: Lattice, xs: Sequence[Floats], *, round_id: int = 0) -> Floats:
    """The mean of what workers have, as a codec gives it."""
    return np.asarray(sumwire.average(codec, xs, round_id=round_id))


def nmse(estimate: Floats, exact: NDArray[np.float64]) -> float:
    """Squared error by the squared norm of the exact mean."""
    return float(np.square(estimate - exact).sum() / np.square(exact).sum())


def lattice_row(codec: Lattice, xs: Sequence[Floats], exact: NDArray[np.float64], *, rounds: int) -> dict[str, float]:
    """Error of a codec, and the bits per value that a worker sends and receives, over rounds with new random numbers.

    These may be fewer than the codec was built for: blocks of zeros send nothing, and none takes more than 8 bits.
    """
    method = ByCodec(codec)
    found = [method.average(xs) for _ in range(rounds)]
    up, down = (float(np.mean(bits)) for bits in zip(*((each.up_bits, each.down_bits) for each in found), strict=True))
    return {
        "nmse": float(np.mean([nmse(each.means[0], exact) for each in found])),
        "up_bits": up,
        "down_bits": down,
        "total_bits": up + down,
    }
