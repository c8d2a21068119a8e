"""What a scheme is given besides the vector: its range and energy, and the keys of the random streams to draw from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.coding import refuse_non_finite, stream_key
from sumwire.errors import RangeError
from sumwire.kernels import lattice as kernels
from sumwire.kernels import scalar

Vector = NDArray[np.float32]

LARGEST = 2.0**90
"""Limit of a coordinate's magnitude: beyond it, rotating the largest block could overflow float32."""

_NOISE, _SIGN, _SAMPLING, _ORDER = range(101, 105)  # random streams, distinct from those of Lattice


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


@dataclass(frozen=True)
class StreamKeys:
    """Keys of the random streams for one vector, derived from seed, round and rank."""

    seed: int
    round_id: int
    rank: int

    @property
    def noise(self) -> int:
        """Key of the client's own rounding noise."""
        return stream_key(self.seed, self.round_id, _NOISE, self.rank)

    @property
    def own_signs(self) -> int:
        """Key of the signs of a rotation that only this client uses."""
        return stream_key(self.seed, self.round_id, _SIGN, self.rank + 1)

    @property
    def shared_signs(self) -> int:
        """Key of the signs of a rotation that all clients of a round share."""
        return stream_key(self.seed, self.round_id, _SIGN)

    @property
    def sampling_word(self) -> int:
        """A random number in 0..2**32-1, which decides whether the client is sampled."""
        return stream_key(self.seed, self.round_id, _SAMPLING, self.rank)

    def ordering(self, rank: int) -> int:
        """Key of the numbers by which clients of a round are ordered, for any rank."""
        return stream_key(self.seed, self.round_id, _ORDER, rank)
