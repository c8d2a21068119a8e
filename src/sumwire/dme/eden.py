"""Rotation, nearest center, and a scale that removes the bias (DRIVE, Vargaftik et al. 2021; EDEN, 2022).

Centers are the optimal ones for a standard normal distribution (Lloyd 1957, Max 1960).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.options import MIN_BLOCK, log2_block
from sumwire.codec.lattice.table import cdf, phi
from sumwire.codec.options import whole_number
from sumwire.dme.levels import packed_bytes, read_floats, unpack
from sumwire.dme.message import Body, check_length
from sumwire.dme.rotated import BLOCK
from sumwire.dme.scheme import BodyPart, MeanScheme
from sumwire.dme.vector import LARGEST, StreamKeys, Vector, VectorStats
from sumwire.errors import ConfigError, FrameError
from sumwire.kernels import lattice as kernels
from sumwire.kernels import scalar
from sumwire.kernels.lattice.scheme import MAX_BITS, MAX_LOG_BLOCK
from sumwire.kernels.scalar.reference import Indices
from sumwire.wire.body import block_count

_MIN_ENERGY = 2.0**-200
"""Blocks with less energy are sent as zeros; the vector has a coordinate of at least 2**-64."""

_STEP = 2.0**-20
"""Centers are rounded to multiples of this, so that they are the same with the libm of every platform."""


@dataclass(frozen=True, init=False, repr=False)
class Eden(MeanScheme):
    """A rotation per client, the nearest of 2**bits centers for a Gaussian, and a scale that removes the bias.

    Law: unbiased under a uniformly random rotation, with a squared error of 0.571, 0.133, 0.036 or 0.0096 times the
    squared norm at 1 to 4 bits, and 1/n of that for the mean of n vectors. The Hadamard rotation comes close where
    many coordinates share the energy. For very sparse vectors, and in the last small blocks of a vector, it leaves a
    bias, as in the published code. Bits: `bits` per coordinate, plus 4 bytes per block and 14 bytes. Not addable,
    because the rotations of clients differ. Cost: as `Rotated`.

    Parameters
    ----------
    bits : int
        Bits per coordinate, 1 to 8.
    block : int
        Coordinates that are rotated together: a power of two, 64 to 2**20.
    seed : int
        Seed of the rotations.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    >>> scheme = Eden(bits=4)
    >>> bool(np.square(scheme.decode(scheme.encode(x)) - x).sum() < 0.011 * np.square(x).sum())
    True
    """

    width: int
    """Bits per coordinate; the method `bits` counts the whole message."""
    block: int

    def __init__(self, bits: int, *, block: int = BLOCK, seed: int = 0) -> None:
        width = whole_number("bits", bits)
        if not 1 <= width <= MAX_BITS:
            raise ConfigError(f"bits={bits} is not in 1..{MAX_BITS}; for less than one bit, use Sampled(Drive(), p)")
        for name, value in (("width", width), ("block", block), ("seed", seed)):
            object.__setattr__(self, name, value)
        super().__post_init__()
        self._check_integer("block", MIN_BLOCK, 1 << MAX_LOG_BLOCK)
        log2_block(self.block, MIN_BLOCK)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bits={self.width}, block={self.block}, seed={self.seed})"

    def _encode(self, x: Vector, stats: VectorStats, keys: StreamKeys) -> list[BodyPart]:
        log_block, signs = log2_block(self.block), keys.own_signs
        sizes = kernels.block_sizes(x.size, log_block)
        centers, edges = lloyd_max(self.width)
        scales = np.zeros(len(sizes), np.float32)
        packed = np.empty(packed_bytes(x.size, len(centers)), np.uint8)

        def work(tile: scalar.Tile, y: Vector, index: Indices) -> None:
            here, at = tile.blocks, tile.coordinates
            kernels.rotate(x[at], log_block, signs, False, y)
            squares, dots = np.empty((2, len(sizes[here])))
            range_ends = np.empty((2, len(squares)), np.float32)  # the kernel computes ranges, too; they are unused
            scalar.summarize(y, log_block, range_ends[0], range_ends[1], squares)
            live = squares >= _MIN_ENERGY
            gain = np.sqrt(np.divide(sizes[here], squares, where=live, out=np.zeros(len(squares)))).astype(np.float32)
            scalar.nearest(y, log_block, gain, edges, centers, index, dots)
            scales[here] = np.divide(squares, dots, where=live, out=np.zeros(len(squares)))
            scalar.pack(index, self.width, packed[tile.packed(self.width)])

        scalar.run(work, x.size, log_block)
        return [scales, packed]

    def _decode(self, body: Body, size: int, keys: StreamKeys) -> Vector:
        log_block, signs = log2_block(self.block), keys.own_signs
        blocks = block_count(size, self.block)
        centers, _ = lloyd_max(self.width)
        check_length(body, 4 * blocks + packed_bytes(size, len(centers)))
        sent = read_floats(body, blocks)
        if not bool(((sent >= 0) & (sent <= 2 * math.sqrt(self.block) * LARGEST)).all()):
            raise FrameError("the message has a scale that is negative or too large: no encoder sends that")
        scales = sent.astype(np.float32)
        packed = np.frombuffer(body, np.uint8, offset=4 * blocks)
        out = np.empty(size, np.float32)

        def work(tile: scalar.Tile, _: Vector, index: Indices) -> None:
            y = out[tile.coordinates]
            unpack(packed, tile, len(centers), index)
            scalar.look_up(index, log_block, scales[tile.blocks], centers, y)
            kernels.rotate(y, log_block, signs, True, y)

        scalar.run(work, size, log_block)
        return out

    def _body_bits(self, size: int) -> float:
        blocks = block_count(size, self.block)
        return 8.0 * (4 * blocks + packed_bytes(size, 1 << self.width))

    def _factor(self, size: int, n: int) -> None:
        return None


class Drive(Eden):
    """One bit per coordinate: the sign after rotation, scaled by |x|^2 / |rotated x|_1.

    Equivalent to `Eden(1)`, whose two centers differ only in sign. Law: as `Eden`; the squared error is pi/2 - 1 times
    the squared norm. Bits: d, plus 4 bytes per block and 14 bytes. Not addable. Cost: as `Rotated`.

    Parameters
    ----------
    block : int
        Coordinates that are rotated together: a power of two, 64 to 2**20.
    seed : int
        Seed of the rotations.

    Examples
    --------
    >>> Drive().bits(4096)
    4240.0
    """

    def __init__(self, *, block: int = BLOCK, seed: int = 0) -> None:
        super().__init__(1, block=block, seed=seed)

    def __repr__(self) -> str:
        return f"Drive(block={self.block}, seed={self.seed})"


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
