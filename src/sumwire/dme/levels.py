"""Evenly spaced levels between a vector's own smallest and largest coordinate (Suresh et al. 2017, 2.1 and 2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.codec import Lattice
from sumwire.dme.message import Body
from sumwire.dme.scheme import LARGEST, MAX_LEVELS, Array, Draw, Facts, MeanScheme, Vector, need_bytes
from sumwire.errors import ConfigError, FrameError
from sumwire.kernels import scalar as level_kernels
from sumwire.kernels.lattice import block_sizes
from sumwire.kernels.lattice.scheme import MAX_BITS
from sumwire.kernels.scalar.reference import Indices

WHOLE = level_kernels.LOG_TILE
"""The block size where blocks do not matter: a tile."""


@dataclass(frozen=True)
class StochasticLevels(MeanScheme):
    """k evenly spaced levels from the vector's minimum to its maximum, each coordinate rounded by chance.

    Law: unbiased. MSE of the mean of n: at most d / (2 n (k-1)^2) times the mean squared norm. Bits: d
    ceil(log2 k), and 22 bytes. Not addable, as every client has its own range; `lattice` is, for k = 2, 4,
    ... 256. Cost: three passes over the vector.

    >>> scheme = StochasticLevels(16)
    >>> x = np.linspace(-1, 1, 1000, dtype=np.float32)
    >>> bool(abs(scheme.decode(scheme.encode(x)) - x).max() <= 2 / 15)
    True
    """

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole("k", 2, MAX_LEVELS)

    def _encode(self, x: Vector, facts: Facts, draw: Draw) -> list[Array]:
        packed = quantize(x, facts.low, facts.high, self.k, draw.noise, self._noise(draw, x.size))
        return [np.array([facts.low, facts.high], np.float32), packed]

    def _noise(self, draw: Draw, size: int) -> NDArray[np.uint32] | None:
        """Words to round with, if they are not simply drawn from the key."""
        return None

    def _decode(self, body: Body, size: int, draw: Draw) -> Vector:
        need_bytes(body, 8 + packed_bytes(size, self.k))
        low, high = ends = read_floats(body, 2)
        check_ranges(ends[:1], ends[1:])
        return dequantize(np.frombuffer(body, np.uint8, offset=8), size, low, (high - low) / (self.k - 1), self.k)

    def _body_bits(self, size: int) -> float:
        return 8.0 * (8 + packed_bytes(size, self.k))

    def _factor(self, size: int, n: int) -> float:
        # A coordinate's variance is at most a quarter of a squared step, and max - min <= sqrt(2) |x|.
        return size / (2 * (self.k - 1) ** 2)

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """Levels over the largest magnitude of all workers instead of one's own range.

        >>> StochasticLevels(16).lattice(4).bits
        4
        """
        return shared_levels(self.k, workers, {"rotate": False, "rounding": "independent", "seed": self.seed} | options)


@dataclass(frozen=True)
class StochasticBinary(StochasticLevels):
    """One bit a coordinate: the vector's minimum or its maximum, by chance. `StochasticLevels(2)`.

    Law: unbiased. MSE of the mean of n: at most d / (2 n) times the mean squared norm. Bits: d, and 22 bytes.

    >>> StochasticBinary().bound(d=1024, n=10)
    51.2
    """

    k: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k != 2:
            raise ConfigError(f"StochasticBinary has 2 levels, not {self.k}: use StochasticLevels({self.k})")


def read_floats(body: Body, count: int) -> NDArray[np.float64]:
    """The floats that a body begins with; they need not be aligned there."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return np.frombuffer(body, np.float32, count).astype(np.float64)


def check_ranges(low: NDArray[np.float64], high: NDArray[np.float64], block: int = 1) -> None:
    """Refuse ranges that no encoder sends of rotated blocks of this size: they might decode to NaN or Inf."""
    most = 2 * math.sqrt(block) * LARGEST
    if not bool(((low >= -most) & (low <= high) & (high <= most)).all()):
        raise FrameError(f"the message's ranges are not within +-{most:.3g}, or end before they begin")


def width_of(k: int) -> int:
    return (k - 1).bit_length()


def packed_bytes(size: int, k: int) -> int:
    return -(-size * width_of(k) // 8)


def indices(x: Vector, low: float, gain: float, k: int, key: int) -> Indices:
    """Every coordinate's level, unpacked."""
    out = np.empty(x.size, np.uint16)
    lows, gains = _everywhere(x.size, low), _everywhere(x.size, gain)

    def work(tile: level_kernels.Tile, *_: object) -> None:
        here, at = tile.blocks, tile.coordinates
        level_kernels.quantize(x[at], WHOLE, lows[here], gains[here], k, key, tile.first, None, out[at])

    level_kernels.run(work, x.size, WHOLE)
    return out


def quantize(
    x: Vector, low: float, high: float, k: int, key: int, noise: NDArray[np.uint32] | None
) -> NDArray[np.uint8]:
    """Levels of a vector with one range, packed."""
    out = np.empty(packed_bytes(x.size, k), np.uint8)
    lows, gains = _everywhere(x.size, low), _everywhere(x.size, (k - 1) / (high - low) if high > low else 0.0)

    def work(tile: level_kernels.Tile, _: Vector, index: Indices) -> None:
        here, at = tile.blocks, tile.coordinates
        mine = None if noise is None else noise[at]
        level_kernels.quantize(x[at], WHOLE, lows[here], gains[here], k, key, tile.first, mine, index)
        level_kernels.pack(index, width_of(k), out[tile.packed(width_of(k))])

    level_kernels.run(work, x.size, WHOLE)
    return out


def dequantize(packed: NDArray[np.uint8], size: int, low: float, step: float, k: int) -> Vector:
    """The vector of packed levels with one range."""
    out = np.empty(size, np.float32)
    lows, steps = _everywhere(size, low), _everywhere(size, step)

    def work(tile: level_kernels.Tile, _: Vector, index: Indices) -> None:
        here = tile.blocks
        unpack(packed, tile, k, index)
        level_kernels.dequantize(index, WHOLE, lows[here], steps[here], out[tile.coordinates])

    level_kernels.run(work, size, WHOLE)
    return out


def dequantize_indices(index: Indices, low: float, step: float) -> Vector:
    """The vector of unpacked levels."""
    out = np.empty(index.size, np.float32)
    lows, steps = _everywhere(index.size, low), _everywhere(index.size, step)

    def work(tile: level_kernels.Tile, *_: object) -> None:
        here, at = tile.blocks, tile.coordinates
        level_kernels.dequantize(index[at], WHOLE, lows[here], steps[here], out[at])

    level_kernels.run(work, index.size, WHOLE)
    return out


def unpack(packed: NDArray[np.uint8], tile: level_kernels.Tile, k: int, index: Indices) -> None:
    """A tile's indices, all of them below k."""
    level_kernels.unpack(packed[tile.packed(width_of(k))], width_of(k), index)
    if k != 1 << width_of(k) and int(index.max()) >= k:
        raise FrameError(f"the message has a level {int(index.max())}: there are only {k}")


def shared_levels(k: int, workers: int, options: dict[str, Any]) -> Lattice:
    """A Lattice of k evenly spaced levels."""
    if k != 1 << width_of(k) or width_of(k) > MAX_BITS:
        raise ConfigError(f"k={k}: lattices have 2, 4, 8, ... or {1 << MAX_BITS} levels")
    setting: dict[str, Any] = {"table": "uniform", "granularity": k - 1, "widths": "fixed"}
    return Lattice(workers, width_of(k), **(setting | options))


def _everywhere(size: int, value: float) -> NDArray[np.float64]:
    return np.full(len(block_sizes(size, WHOLE)), value)
