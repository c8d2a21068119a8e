"""Evenly spaced levels between the minimum and maximum of a vector (Suresh et al. 2017, sections 2.1 and 2.2).

`Correlated` has rounding errors that cancel between clients (Suresh et al. 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import MAX_WORKERS
from sumwire.codec.lattice.codec import Lattice
from sumwire.dme.message import Body, check_length
from sumwire.dme.scheme import MAX_LEVELS, BodyPart, MeanScheme
from sumwire.dme.vector import LARGEST, StreamKeys, Vector, VectorStats
from sumwire.errors import ConfigError, FrameError
from sumwire.kernels import scalar
from sumwire.kernels.hashing import hash32
from sumwire.kernels.lattice import block_sizes
from sumwire.kernels.lattice.scheme import MAX_BITS
from sumwire.kernels.scalar.reference import Indices

_CHUNK = 1 << 16


@dataclass(frozen=True)
class StochasticLevels(MeanScheme):
    """k evenly spaced levels between a vector's minimum and maximum, with stochastic rounding.

    Law: unbiased; the mean of n vectors has an expected squared error of at most d / (2 n (k-1)^2) times the mean
    squared norm. Bits: d ceil(log2 k), plus 22 bytes. Not addable, because every client has its own range;
    `lattice` is, for k = 2, 4, ... 256. Cost: three passes over the vector.

    Parameters
    ----------
    k : int
        Number of levels, 2 to 65536.
    seed : int
        Seed of the rounding noise.

    Examples
    --------
    >>> scheme = StochasticLevels(16)
    >>> x = np.linspace(-1, 1, 1000, dtype=np.float32)
    >>> bool(abs(scheme.decode(scheme.encode(x)) - x).max() <= 2 / 15)
    True
    """

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_integer("k", 2, MAX_LEVELS)

    def _encode(self, x: Vector, stats: VectorStats, keys: StreamKeys) -> list[BodyPart]:
        packed = quantize(x, stats.low, stats.high, self.k, keys.noise, self._noise(keys, x.size))
        return [np.array([stats.low, stats.high], np.float32), packed]

    def _noise(self, keys: StreamKeys, size: int) -> NDArray[np.uint32] | None:
        """Noise words to round with; None draws them from the key in the kernel."""
        return None

    def _decode(self, body: Body, size: int, keys: StreamKeys) -> Vector:
        check_length(body, 8 + packed_bytes(size, self.k))
        low, high = ends = read_floats(body, 2)
        check_ranges(ends[:1], ends[1:])
        return dequantize(np.frombuffer(body, np.uint8, offset=8), size, low, (high - low) / (self.k - 1), self.k)

    def _body_bits(self, size: int) -> float:
        return 8.0 * (8 + packed_bytes(size, self.k))

    def _factor(self, size: int, n: int) -> float:
        # A coordinate's variance is at most a quarter of a squared step, and max - min <= sqrt(2) |x|.
        return size / (2 * (self.k - 1) ** 2)

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """The same levels on a shared range: the largest magnitude of all workers.

        See `MeanScheme.lattice`.

        Examples
        --------
        >>> StochasticLevels(16).lattice(4).bits
        4
        """
        return shared_lattice(
            self.k, workers, {"rotate": False, "rounding": "independent", "seed": self.seed} | options
        )


@dataclass(frozen=True)
class StochasticBinary(StochasticLevels):
    """One bit per coordinate: the vector's minimum or its maximum, at random. Equivalent to `StochasticLevels(2)`.

    Law: unbiased; the mean of n vectors has an expected squared error of at most d / (2 n) times the mean squared
    norm. Bits: d, plus 22 bytes. Cost: as `StochasticLevels`.

    Parameters
    ----------
    seed : int
        Seed of the rounding noise.

    Examples
    --------
    >>> StochasticBinary().bound(d=1024, n=10)
    51.2
    """

    k: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k != 2:
            raise ConfigError(f"StochasticBinary has 2 levels, not {self.k}: use StochasticLevels({self.k})")


@dataclass(frozen=True)
class Correlated(StochasticLevels):
    """As `StochasticLevels`, but with rounding noise that is stratified over clients.

    For every coordinate, clients share a random order; the client at position p of n draws its noise from
    [p/n, (p+1)/n). Law: unbiased; no two clients are positively correlated, so the bound of `StochasticLevels` holds,
    and errors of clients with similar vectors cancel. Bits: as `StochasticLevels`. Not addable; `lattice` is, and its
    stratified rounding does the same with one hash. Cost: `workers` hashes per coordinate, in NumPy.

    Parameters
    ----------
    k : int
        Number of levels, 2 to 65536.
    workers : int
        Number n of clients in a group. Higher ranks form further groups; with fewer clients, less cancels.
    seed : int
        Seed of the order and of the noise.

    Examples
    --------
    >>> from sumwire.dme import estimate
    >>> xs = [np.linspace(-1, 1, 1000, dtype=np.float32)] * 8
    >>> schemes = Correlated(4, workers=8), StochasticLevels(4)
    >>> errors = [np.square(estimate(scheme, xs) - xs[0]).sum() for scheme in schemes]
    >>> bool(errors[0] < 0.3 * errors[1])
    True
    """

    workers: int = field(default=16, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_integer("workers", 1, MAX_WORKERS)

    def _noise(self, keys: StreamKeys, size: int) -> NDArray[np.uint32]:
        words = np.empty(size, np.uint32)
        for start in range(0, size, _CHUNK):  # to bound memory
            counter = np.arange(start, min(start + _CHUNK, size))
            words[counter] = self._stratum(keys, counter)
        return words

    def _stratum(self, keys: StreamKeys, counter: NDArray[np.int64]) -> NDArray[np.uint64]:
        """For each coordinate, a random number in this client's stratum of [0, 1), in units of 2**-32."""
        group = keys.rank // self.workers * self.workers
        mine = hash32(keys.ordering(keys.rank), counter)
        position = np.zeros(len(counter), np.uint64)
        for other in range(group, group + self.workers):
            theirs = hash32(keys.ordering(other), counter)
            position += theirs < mine if other >= keys.rank else theirs <= mine
        within = hash32(keys.noise, counter).astype(np.uint64)
        return ((position << np.uint64(32)) + within) // np.uint64(self.workers)

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """The same levels on a shared range, with the stratified rounding of `Lattice`.

        See `MeanScheme.lattice`.

        Examples
        --------
        >>> Correlated(16).lattice(4).rounding
        'stratified'
        """
        return shared_lattice(self.k, workers, {"rotate": False, "rounding": "stratified", "seed": self.seed} | options)


def read_floats(body: Body, count: int) -> NDArray[np.float64]:
    """The first `count` float32 values of a body, which need not be aligned, as float64."""
    with np.errstate(invalid="ignore"):  # signaling NaN
        return np.frombuffer(body, np.float32, count).astype(np.float64)


def check_ranges(low: NDArray[np.float64], high: NDArray[np.float64], block: int = 1) -> None:
    """Raise `FrameError` for ranges that no encoder sends for blocks of this size: they might decode to NaN or Inf."""
    most = 2 * math.sqrt(block) * LARGEST
    if not bool(((low >= -most) & (low <= high) & (high <= most)).all()):
        raise FrameError(f"the message has a range outside +-{most:.3g}, or with its minimum above its maximum")


def index_bits(k: int) -> int:
    """Bits of an index into k levels."""
    return (k - 1).bit_length()


def packed_bytes(size: int, k: int) -> int:
    """Bytes of `size` packed indices into k levels."""
    return -(-size * index_bits(k) // 8)


def indices(x: Vector, low: float, gain: float, k: int, key: int) -> Indices:
    """Index of the level of every coordinate, unpacked."""
    out = np.empty(x.size, np.uint16)
    lows, gains = _per_tile(x.size, low), _per_tile(x.size, gain)

    def work(tile: scalar.Tile, *_: object) -> None:
        here, at = tile.blocks, tile.coordinates
        scalar.quantize(x[at], scalar.LOG_TILE, lows[here], gains[here], k, key, tile.first, None, out[at])

    scalar.run(work, x.size, scalar.LOG_TILE)
    return out


def quantize(
    x: Vector, low: float, high: float, k: int, key: int, noise: NDArray[np.uint32] | None
) -> NDArray[np.uint8]:
    """Packed indices of a vector with one range."""
    out = np.empty(packed_bytes(x.size, k), np.uint8)
    lows, gains = _per_tile(x.size, low), _per_tile(x.size, (k - 1) / (high - low) if high > low else 0.0)

    def work(tile: scalar.Tile, _: Vector, index: Indices) -> None:
        here, at = tile.blocks, tile.coordinates
        mine = None if noise is None else noise[at]
        scalar.quantize(x[at], scalar.LOG_TILE, lows[here], gains[here], k, key, tile.first, mine, index)
        scalar.pack(index, index_bits(k), out[tile.packed(index_bits(k))])

    scalar.run(work, x.size, scalar.LOG_TILE)
    return out


def dequantize(packed: NDArray[np.uint8], size: int, low: float, step: float, k: int) -> Vector:
    """The vector of packed indices with one range."""
    out = np.empty(size, np.float32)
    lows, steps = _per_tile(size, low), _per_tile(size, step)

    def work(tile: scalar.Tile, _: Vector, index: Indices) -> None:
        here = tile.blocks
        unpack(packed, tile, k, index)
        scalar.dequantize(index, scalar.LOG_TILE, lows[here], steps[here], out[tile.coordinates])

    scalar.run(work, size, scalar.LOG_TILE)
    return out


def dequantize_indices(index: Indices, low: float, step: float) -> Vector:
    """The vector of unpacked indices."""
    out = np.empty(index.size, np.float32)
    lows, steps = _per_tile(index.size, low), _per_tile(index.size, step)

    def work(tile: scalar.Tile, *_: object) -> None:
        here, at = tile.blocks, tile.coordinates
        scalar.dequantize(index[at], scalar.LOG_TILE, lows[here], steps[here], out[at])

    scalar.run(work, index.size, scalar.LOG_TILE)
    return out


def unpack(packed: NDArray[np.uint8], tile: scalar.Tile, k: int, index: Indices) -> None:
    """Unpack the indices of a tile, and check that they are below k."""
    scalar.unpack(packed[tile.packed(index_bits(k))], index_bits(k), index)
    if k != 1 << index_bits(k) and int(index.max()) >= k:
        raise FrameError(f"the message has an index {int(index.max())}, but there are only {k} levels")


def shared_lattice(k: int, workers: int, options: dict[str, Any]) -> Lattice:
    """A `Lattice` with k evenly spaced levels."""
    if k != 1 << index_bits(k) or index_bits(k) > MAX_BITS:
        raise ConfigError(f"k={k} is not a number of levels of a lattice: use 2, 4, 8, ... or {1 << MAX_BITS}")
    setting: dict[str, Any] = {"table": "uniform", "granularity": k - 1, "widths": "fixed", "down_bits": "exact"}
    return Lattice(workers, index_bits(k), **(setting | options))


def _per_tile(size: int, value: float) -> NDArray[np.float64]:
    return np.full(len(block_sizes(size, scalar.LOG_TILE)), value)
