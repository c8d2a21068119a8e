"""Entropy-coded levels (Suresh et al. 2017, section 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sumwire.dme.levels import check_ranges, dequantize_indices, indices, read_floats
from sumwire.dme.message import Body, check_length
from sumwire.dme.scheme import MAX_LEVELS, BodyPart, MeanScheme
from sumwire.dme.vector import StreamKeys, Vector, VectorStats
from sumwire.errors import ConfigError
from sumwire.wire import entropy


@dataclass(frozen=True)
class VariableLength(MeanScheme):
    """k levels from the minimum upward, sqrt(2) |x| / (k-1) apart, compressed by a range coder with their histogram.

    Law: unbiased; the mean of n vectors has an expected squared error of at most d / (2 n (k-1)^2) times the mean
    squared norm. Bits: at most d (2 + log2((k-1)^2 / 2d + 5/4)) + k log2((d+k) e/k), plus about 30 bytes. With
    k = "sqrt", which means ceil(sqrt(d)) + 1, the error is at most 1 / (2n) at no more than about 2.8 bits per
    coordinate. Not addable. Cost: 10 to 20 ns per coordinate to encode, 20 ns to decode. Needs constriction:
    ``pip install ".[dme]"`` in the source tree.

    Parameters
    ----------
    k : int or "sqrt"
        Number of levels, 2 to 65536.
    seed : int
        Seed of the rounding noise.

    Examples
    --------
    >>> scheme = VariableLength()
    >>> x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    >>> message = scheme.encode(x)
    >>> 8 * len(message) < 2.8 * x.size, bool(np.square(scheme.decode(message) - x).sum() < np.square(x).sum() / 2)
    (True, True)
    """

    k: int | Literal["sqrt"] = "sqrt"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.k, str) and self.k != "sqrt":
            raise ConfigError(f'k={self.k!r} is not a number of levels or "sqrt"')
        if self.k != "sqrt":
            self._check_integer("k", 2, MAX_LEVELS)

    def levels(self, d: int) -> int:
        """Number of levels for a vector of `d` coordinates.

        Parameters
        ----------
        d : int
            Number of coordinates.

        Returns
        -------
        int
            `k`, or its value for "sqrt".

        Examples
        --------
        >>> VariableLength().levels(1024)
        33
        """
        return max(2, math.isqrt(max(d - 1, 0)) + 2) if self.k == "sqrt" else self.k

    def _encode(self, x: Vector, stats: VectorStats, keys: StreamKeys) -> list[BodyPart]:
        k = self.levels(x.size)
        # Rounded up, because the highest level must not lie below the largest coordinate.
        span = np.nextafter(np.float32(math.sqrt(2 * stats.energy)), np.float32(np.inf)) if stats.energy else 0.0
        ends = np.array([stats.low, span], np.float32)
        gain = (k - 1) / float(ends[1]) if ends[1] else 0.0
        coded = entropy.encode(indices(x, float(ends[0]), gain, k, keys.noise), k)
        return [ends, np.frombuffer(coded, np.uint8)]

    def _decode(self, body: Body, size: int, keys: StreamKeys) -> Vector:
        k = self.levels(size)
        check_length(body[:8], 8)
        low, span = read_floats(body, 2).tolist()
        # A span is at most sqrt(2) |x|, for a vector of d coordinates.
        check_ranges(np.array([low]), np.array([low + span]), 2 * size)
        index = entropy.decode(body[8:], size, k)
        return dequantize_indices(index, low, span / (k - 1))

    def _body_bits(self, size: int) -> float:
        k = self.levels(size)
        coded = size * (2 + math.log2((k - 1) ** 2 / (2 * size) + 1.25)) + k * math.log2((size + k) * math.e / k)
        return 64 + coded + 64  # the range, and the final state of the coder

    def _factor(self, size: int, n: int) -> float:
        return size / (2 * (self.levels(size) - 1) ** 2)
