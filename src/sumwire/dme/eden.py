"""One-shot estimates that are scaled to be right on average (DRIVE, Vargaftik et al. 2021; EDEN, 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sumwire.codec.base import whole_number
from sumwire.codec.lattice.options import MIN_BLOCK
from sumwire.codec.lattice.rotation import log2_block
from sumwire.dme.levels import packed_bytes, read_floats, unpack
from sumwire.dme.lloyd_max import lloyd_max
from sumwire.dme.message import Body
from sumwire.dme.rotated import BLOCK
from sumwire.dme.scheme import LARGEST, Array, Draw, Facts, MeanScheme, Vector, need_bytes
from sumwire.errors import ConfigError, FrameError
from sumwire.kernels import lattice as kernels
from sumwire.kernels import scalar as level_kernels
from sumwire.kernels.lattice.scheme import MAX_BITS, MAX_LOG_BLOCK
from sumwire.kernels.scalar.reference import Indices
from sumwire.wire.body import block_count

_NOTHING = 2.0**-200
"""Energy of a block that is sent as zeros; its vector has a coordinate of at least 2**-64."""


@dataclass(frozen=True, init=False, repr=False)
class Eden(MeanScheme):
    """A rotation of one's own, the nearest of 2**bits centres made for a Gaussian, and a scale that makes up for it.

    Law: unbiased under a uniformly random rotation, with an error of 0.571, 0.133, 0.036 or 0.0096 of the squared
    norm at 1 to 4 bits, and 1/n of that for the mean of n. The Hadamard rotation comes close to it where many
    coordinates share the energy; for very sparse vectors, and in the last few coordinates of one that is no
    multiple of a power of two, it leaves a bias, as in the published code. Bits: `bits` a coordinate, 4 bytes a
    block, and 14. Not addable: clients' rotations differ. Cost: as `Rotated`.

    >>> x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    >>> scheme = Eden(bits=4)
    >>> bool(np.square(scheme.decode(scheme.encode(x)) - x).sum() < 0.011 * np.square(x).sum())
    True
    """

    width: int
    """Bits a coordinate; `bits` is the whole message's."""
    block: int

    def __init__(self, bits: int, *, block: int = BLOCK, seed: int = 0) -> None:
        width = whole_number("bits", bits)
        if not 1 <= width <= MAX_BITS:
            raise ConfigError(f"bits={bits} is not in 1..{MAX_BITS}; for less than one, use Sampled(Drive(), p)")
        for name, value in (("width", width), ("block", block), ("seed", seed)):
            object.__setattr__(self, name, value)
        super().__post_init__()
        self._whole("block", MIN_BLOCK, 1 << MAX_LOG_BLOCK)
        log2_block(self.block, MIN_BLOCK)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bits={self.width}, block={self.block}, seed={self.seed})"

    def _encode(self, x: Vector, facts: Facts, draw: Draw) -> list[Array]:
        log_block, signs = log2_block(self.block), draw.own_signs
        sizes = kernels.block_sizes(x.size, log_block)
        centres, edges = lloyd_max(self.width)
        scales = np.zeros(len(sizes), np.float32)
        packed = np.empty(packed_bytes(x.size, len(centres)), np.uint8)

        def work(tile: level_kernels.Tile, y: Vector, index: Indices) -> None:
            here, at = tile.blocks, tile.coordinates
            kernels.rotate(x[at], log_block, signs, False, y)
            squares, dots = np.empty((2, len(sizes[here])))
            range_ends = np.empty((2, len(squares)), np.float32)  # which comes along, and is not needed
            level_kernels.summarize(y, log_block, range_ends[0], range_ends[1], squares)
            live = squares >= _NOTHING
            gain = np.sqrt(np.divide(sizes[here], squares, where=live, out=np.zeros(len(squares)))).astype(np.float32)
            level_kernels.nearest(y, log_block, gain, edges, centres, index, dots)
            scales[here] = np.divide(squares, dots, where=live, out=np.zeros(len(squares)))
            level_kernels.pack(index, self.width, packed[tile.packed(self.width)])

        level_kernels.run(work, x.size, log_block)
        return [scales, packed]

    def _decode(self, body: Body, size: int, draw: Draw) -> Vector:
        log_block, signs = log2_block(self.block), draw.own_signs
        blocks = block_count(size, self.block)
        centres, _ = lloyd_max(self.width)
        need_bytes(body, 4 * blocks + packed_bytes(size, len(centres)))
        sent = read_floats(body, blocks)
        if not bool(((sent >= 0) & (sent <= 2 * math.sqrt(self.block) * LARGEST)).all()):
            raise FrameError("the message's scales are negative or too large: no encoder sends that")
        scales = sent.astype(np.float32)
        packed = np.frombuffer(body, np.uint8, offset=4 * blocks)
        out = np.empty(size, np.float32)

        def work(tile: level_kernels.Tile, _: Vector, index: Indices) -> None:
            y = out[tile.coordinates]
            unpack(packed, tile, len(centres), index)
            level_kernels.look_up(index, log_block, scales[tile.blocks], centres, y)
            kernels.rotate(y, log_block, signs, True, y)

        level_kernels.run(work, size, log_block)
        return out

    def _body_bits(self, size: int) -> float:
        blocks = block_count(size, self.block)
        return 8.0 * (4 * blocks + packed_bytes(size, 1 << self.width))

    def _factor(self, size: int, n: int) -> None:
        return None


class Drive(Eden):
    """One bit: the sign of each rotated coordinate, scaled by |x|^2 / |rotated x|_1. `Eden(1)`, whose two centres
    differ in sign only.

    Law: as `Eden`; the error is pi/2 - 1 of the squared norm. Bits: d, 4 bytes a block, and 14.

    >>> Drive().bits(4096)
    4240.0
    """

    def __init__(self, *, block: int = BLOCK, seed: int = 0) -> None:
        super().__init__(1, block=block, seed=seed)

    def __repr__(self) -> str:
        return f"Drive(block={self.block}, seed={self.seed})"
