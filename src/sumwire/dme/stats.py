"""Range and energy of a vector, and the check that it can be encoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.coding import refuse_non_finite
from sumwire.errors import RangeError
from sumwire.kernels import lattice as kernels
from sumwire.kernels import scalar

Vector = NDArray[np.float32]

LARGEST = 2.0**90
"""Limit of a coordinate's magnitude: beyond it, rotating the largest block could overflow float32."""


@dataclass(frozen=True)
class VectorStats:
    """Range and squared norm of a vector."""

    low: float
    high: float
    energy: float


def statistics(flat: NDArray[np.generic], values: Vector) -> VectorStats:
    """Statistics of a vector that can be encoded; error messages describe `flat`, the vector as given."""
    if not values.size:
        return VectorStats(0.0, 0.0, 0.0)
    blocks = len(kernels.block_sizes(values.size, scalar.LOG_TILE))
    low, high, energy = np.empty(blocks, np.float32), np.empty(blocks, np.float32), np.empty(blocks)

    def work(tile: scalar.Tile, *_: object) -> None:
        here = tile.blocks
        scalar.summarize(values[tile.coordinates], scalar.LOG_TILE, low[here], high[here], energy[here])

    scalar.run(work, values.size, scalar.LOG_TILE)
    total = float(energy.sum())
    if not np.isfinite(total):
        refuse_non_finite(flat)
    peak = max(-float(low.min()), float(high.max()))
    if peak > LARGEST:
        raise RangeError(f"the largest magnitude is {peak:.3g}; the limit is 2**90: scale the vector down")
    return VectorStats(float(low.min()), float(high.max()), total)
