"""Rows that have clusters and principal components, and every scheme with its permitted error on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire import Lattice, Sketch, Sparse, dme

CLUSTERS = 6
PARTITIONS = 32
"""Enough for the one-bit schemes, whose errors are as large as their vectors; codecs define their own number."""

WITHIN: list[tuple[Any, float, float]] = [
    (dme.StochasticBinary(), 0.1, 0.03),
    (dme.StochasticLevels(16), 0.001, 0.0003),
    (dme.Rotated(16), 0.001, 0.0003),
    (dme.VariableLength(16), 0.005, 0.001),
    (dme.Sampled(dme.Eden(4), 0.5), 0.02, 0.005),
    (dme.Correlated(16), 0.001, 0.0003),
    (dme.Drive(), 0.01, 0.002),
    (dme.Eden(4), 0.0005, 0.0001),
    (Lattice(PARTITIONS, 4), 0.0005, 0.0001),
    (Lattice(PARTITIONS, 2), 0.005, 0.002),
    (Sparse(8), 1e-9, 1e-6),
    (Sketch(8), 1e-9, 1e-6),
]
"""Schemes with the permitted relative increase of inertia and loss of variance: about three times the maximum over four
seeds."""


def blobs(rows: int = 1200, dtype: Any = np.float64) -> NDArray[Any]:
    """Six clusters in 32 dimensions, row i in cluster i % 6."""
    rng = np.random.default_rng(0)
    middles = 3 * rng.normal(size=(CLUSTERS, 32))
    noise = rng.normal(size=(rows, 32)) * np.linspace(2, 0.5, 32)
    return (middles[np.arange(rows) % CLUSTERS] + noise).astype(dtype)


def name(value: Any) -> str | None:
    """The name of a scheme in test ids."""
    return None if isinstance(value, float) else type(value).__name__
