"""Levels after a rotation that all clients share (Suresh et al. 2017, section 3).

A randomized Hadamard transform spreads the energy of a block evenly, so that its range shrinks to about
2 sqrt(2 ln B) standard deviations for any vector. Every block has its own range. The tail of a vector is split into
smaller blocks, so nothing is padded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.options import MIN_BLOCK, log2_block
from sumwire.dme.levels import (
    check_ranges,
    index_bits,
    packed_bytes,
    read_floats,
    shared_lattice,
    unpack,
)
from sumwire.dme.message import Body, check_length
from sumwire.dme.scheme import MAX_LEVELS, BodyPart, MeanScheme
from sumwire.dme.vector import StreamKeys, Vector, VectorStats
from sumwire.kernels import lattice as kernels
from sumwire.kernels import scalar
from sumwire.kernels.lattice.scheme import MAX_LOG_BLOCK
from sumwire.kernels.scalar.reference import Indices
from sumwire.wire.body import block_count

BLOCK = 4096


@dataclass(frozen=True)
class Rotated(MeanScheme):
    """k evenly spaced levels over the range of each rotated block, with stochastic rounding.

    Law: unbiased; the mean of n vectors has an expected squared error of at most (2 ln B + 2) / (n (k-1)^2) times the
    mean squared norm, for blocks of B coordinates. Bits: d ceil(log2 k), plus 8 bytes per block and 14 bytes.
    Not addable, because every client has its own ranges; `lattice` is. Cost: about twice that of `StochasticLevels`.

    Parameters
    ----------
    k : int
        Number of levels, 2 to 65536.
    block : int
        Coordinates that are rotated together: a power of two, 64 to 2**20.
    seed : int
        Seed of the rotation and of the rounding noise.

    Examples
    --------
    >>> scheme = Rotated(16)
    >>> x = np.zeros(1024, np.float32); x[7] = 1
    >>> bool(np.square(scheme.decode(scheme.encode(x)) - x).sum() < scheme.bound(1024, 1) < 0.08)
    True
    """

    k: int
    block: int = field(default=BLOCK, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_integer("k", 2, MAX_LEVELS)
        self._check_integer("block", MIN_BLOCK, 1 << MAX_LOG_BLOCK)
        log2_block(self.block, MIN_BLOCK)

    def _encode(self, x: Vector, stats: VectorStats, keys: StreamKeys) -> list[BodyPart]:
        signs, key = keys.shared_signs, keys.noise
        log_block, width = log2_block(self.block), index_bits(self.k)
        blocks = self._blocks(x.size)
        ends, energy = (
            np.empty((2, blocks), np.float32),
            np.empty(blocks),
        )  # the kernel computes energy, too; it is unused
        packed = np.empty(packed_bytes(x.size, self.k), np.uint8)

        def work(tile: scalar.Tile, y: Vector, index: Indices) -> None:
            here, at = tile.blocks, tile.coordinates
            kernels.rotate(x[at], log_block, signs, False, y)
            scalar.summarize(y, log_block, ends[0, here], ends[1, here], energy[here])
            low, high = ends[:, here].astype(np.float64)
            with np.errstate(divide="ignore"):
                gain = np.where(high > low, (self.k - 1) / (high - low), 0.0)
            scalar.quantize(y, log_block, low, gain, self.k, key, tile.first, None, index)
            scalar.pack(index, width, packed[tile.packed(width)])

        scalar.run(work, x.size, log_block)
        return [np.ascontiguousarray(ends.T), packed]

    def _decode(self, body: Body, size: int, keys: StreamKeys) -> Vector:
        log_block, blocks = log2_block(self.block), self._blocks(size)
        check_length(body, 8 * blocks + packed_bytes(size, self.k))
        low, high = read_floats(body, 2 * blocks).reshape(blocks, 2).T.copy()
        check_ranges(low, high, self.block)
        step = (high - low) / (self.k - 1)
        packed = np.frombuffer(body, np.uint8, offset=8 * blocks)
        out = np.empty(size, np.float32)

        def work(tile: scalar.Tile, _: Vector, index: Indices) -> None:
            here, y = tile.blocks, out[tile.coordinates]
            unpack(packed, tile, self.k, index)
            scalar.dequantize(index, log_block, low[here], step[here], y)
            kernels.rotate(y, log_block, keys.shared_signs, True, y)

        scalar.run(work, size, log_block)
        return out

    def _blocks(self, size: int) -> int:
        return block_count(size, self.block)

    def _body_bits(self, size: int) -> float:
        return 8.0 * (8 * self._blocks(size) + packed_bytes(size, self.k))

    def _factor(self, size: int, n: int) -> float:
        # (max - min)^2 <= 2 max^2 + 2 min^2, and E[max^2] of B rotated coordinates <= (2 ln B + 2) |x|^2 / B.
        return (2 * math.log(min(size, self.block)) + 2) / (self.k - 1) ** 2

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """The same levels on a shared range, which follows from the largest norm of all workers.

        A few coordinates lie outside that range and are clamped, so this form has a small bias. See
        `MeanScheme.lattice`.

        Examples
        --------
        >>> Rotated(16).lattice(4).rotate
        True
        """
        mine = {"rounding": "independent", "block": self.block, "seed": self.seed}
        return shared_lattice(self.k, workers, mine | options)
