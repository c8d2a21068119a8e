"""Levels after a rotation that all clients share (Suresh et al. 2017, section 3).

A randomised Hadamard spreads a block's energy evenly, so that its range shrinks to about
2 sqrt(2 ln B) standard deviations, whatever the vector was. Blocks have ranges of their own; the vector's
tail is cut into smaller blocks, and nothing is padded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.options import MIN_BLOCK
from sumwire.codec.lattice.rotation import log2_block
from sumwire.dme.levels import (
    check_ranges,
    packed_bytes,
    read_floats,
    shared_levels,
    unpack,
    width_of,
)
from sumwire.dme.message import Body
from sumwire.dme.scheme import MAX_LEVELS, Array, Draw, Facts, MeanScheme, Vector, need_bytes
from sumwire.kernels import lattice as kernels
from sumwire.kernels import scalar as level_kernels
from sumwire.kernels.lattice.scheme import MAX_LOG_BLOCK
from sumwire.kernels.scalar.reference import Indices
from sumwire.wire.body import block_count

BLOCK = 4096


@dataclass(frozen=True)
class Rotated(MeanScheme):
    """k evenly spaced levels over the range of a rotated block.

    Law: unbiased. MSE of the mean of n: at most (2 ln B + 2) / (n (k-1)^2) times the mean squared norm, for
    blocks of B coordinates. Bits: d ceil(log2 k), 8 bytes a block, and 14. Not addable, as every client has its
    own ranges; `lattice` is. Cost: about twice that of `StochasticLevels`.

    >>> scheme = Rotated(16)
    >>> x = np.zeros(1024, np.float32); x[7] = 1
    >>> bool(np.square(scheme.decode(scheme.encode(x)) - x).sum() < scheme.bound(1024, 1) < 0.08)
    True
    """

    k: int
    block: int = field(default=BLOCK, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole("k", 2, MAX_LEVELS)
        self._whole("block", MIN_BLOCK, 1 << MAX_LOG_BLOCK)
        log2_block(self.block, MIN_BLOCK)

    def _encode(self, x: Vector, facts: Facts, draw: Draw) -> list[Array]:
        signs, key = draw.shared_signs, draw.noise
        log_block, width = log2_block(self.block), width_of(self.k)
        blocks = self._blocks(x.size)
        ends, energy = np.empty((2, blocks), np.float32), np.empty(blocks)  # the latter comes along
        packed = np.empty(packed_bytes(x.size, self.k), np.uint8)

        def work(tile: level_kernels.Tile, y: Vector, index: Indices) -> None:
            here, at = tile.blocks, tile.coordinates
            kernels.rotate(x[at], log_block, signs, False, y)
            level_kernels.summarize(y, log_block, ends[0, here], ends[1, here], energy[here])
            low, high = ends[:, here].astype(np.float64)
            with np.errstate(divide="ignore"):
                gain = np.where(high > low, (self.k - 1) / (high - low), 0.0)
            level_kernels.quantize(y, log_block, low, gain, self.k, key, tile.first, None, index)
            level_kernels.pack(index, width, packed[tile.packed(width)])

        level_kernels.run(work, x.size, log_block)
        return [np.ascontiguousarray(ends.T), packed]

    def _decode(self, body: Body, size: int, draw: Draw) -> Vector:
        log_block, blocks = log2_block(self.block), self._blocks(size)
        need_bytes(body, 8 * blocks + packed_bytes(size, self.k))
        low, high = read_floats(body, 2 * blocks).reshape(blocks, 2).T.copy()
        check_ranges(low, high, self.block)
        step = (high - low) / (self.k - 1)
        packed = np.frombuffer(body, np.uint8, offset=8 * blocks)
        out = np.empty(size, np.float32)

        def work(tile: level_kernels.Tile, _: Vector, index: Indices) -> None:
            here, y = tile.blocks, out[tile.coordinates]
            unpack(packed, tile, self.k, index)
            level_kernels.dequantize(index, log_block, low[here], step[here], y)
            kernels.rotate(y, log_block, draw.shared_signs, True, y)

        level_kernels.run(work, size, log_block)
        return out

    def _blocks(self, size: int) -> int:
        return block_count(size, self.block)

    def _body_bits(self, size: int) -> float:
        return 8.0 * (8 * self._blocks(size) + packed_bytes(size, self.k))

    def _factor(self, size: int, n: int) -> float:
        # (max - min)^2 <= 2 max^2 + 2 min^2, and E[max^2] of B rotated coordinates <= (2 ln B + 2) |x|^2 / B.
        return (2 * math.log(min(size, self.block)) + 2) / (self.k - 1) ** 2

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """Levels over a range that follows from the largest norm of all workers.

        A rare coordinate lies outside that range and is clamped to it, so this form has a small bias.

        >>> Rotated(16).lattice(4).rotate
        True
        """
        mine = {"rounding": "independent", "block": self.block, "seed": self.seed}
        return shared_levels(self.k, workers, mine | options)
