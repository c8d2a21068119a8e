"""Optimal quantization centers for a standard normal distribution (Lloyd 1957, Max 1960)."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.table import cdf, phi

_STEP = 2.0**-20
"""Centers are rounded to multiples of this, so that they are the same with the libm of every platform."""


@lru_cache(maxsize=16)
def lloyd_max(bits: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """2**bits centers in ascending order, and the edges halfway between them.

    >>> centers, edges = lloyd_max(2)
    >>> np.round(centers.astype(float), 4).tolist(), np.round(edges.astype(float), 4).tolist()
    ([-1.5104, -0.4528, 0.4528, 1.5104], [-0.9816, 0.0, 0.9816])
    """
    count = 1 << bits
    # For many centers, their density is the cube root of the normal density: a normal with variance 3.
    spread = NormalDist(0.0, math.sqrt(3.0))
    edges = np.array([spread.inv_cdf(k / count) for k in range(1, count)])
    for _ in range(8):  # Newton: for 1 to 8 bits, six steps reach float64 accuracy
        edges = edges - _solve(*_jacobian(edges), _excess(edges))
    edges = (edges - edges[::-1]) / 2
    centers = np.rint(_means(edges) / _STEP) * _STEP
    centers = (centers - centers[::-1]) / 2
    found = centers.astype(np.float32), ((centers[:-1] + centers[1:]) / 2).astype(np.float32)
    for array in found:
        array.flags.writeable = False  # the cached arrays are shared
    return found


def _cells(edges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Density at the edges (0 at both infinities), and probability and mean of each cell."""
    density = np.concatenate([[0.0], phi(edges), [0.0]])
    probability = np.diff(np.concatenate([[0.0], cdf(edges), [1.0]]))
    return density, probability, -np.diff(density) / probability


def _means(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    return _cells(edges)[2]


def _excess(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance of each edge above the midpoint of the adjacent cell means: 0 at the optimum."""
    means = _means(edges)
    return edges - (means[:-1] + means[1:]) / 2


def _jacobian(edges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Derivatives of `_excess` below, on and above the diagonal; a cell's mean depends on its two edges."""
    density, probability, means = _cells(edges)
    by_right = density[1:-1] * (edges - means[:-1]) / probability[:-1]
    by_left = density[1:-1] * (means[1:] - edges) / probability[1:]
    return -by_left[:-1] / 2, 1 - (by_right + by_left) / 2, -by_right[1:] / 2


def _solve(
    below: NDArray[np.float64], diagonal: NDArray[np.float64], above: NDArray[np.float64], right: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Solve a tridiagonal system by elimination, which gives the same bits on every platform, unlike LAPACK."""
    diagonal, x = diagonal.copy(), right.copy()
    for i in range(1, len(x)):
        factor = below[i - 1] / diagonal[i - 1]
        diagonal[i] -= factor * above[i - 1]
        x[i] -= factor * x[i - 1]
    x[-1] /= diagonal[-1]
    for i in reversed(range(len(x) - 1)):
        x[i] = (x[i] - above[i] * x[i + 1]) / diagonal[i]
    return x
