"""Ranges that leave no bias: what clamping takes from a Gaussian coordinate, and what gives it back.

Clamping x ~ N(0, 1) to [-t, t] leaves E[x clip(x)] = P(|x| < t) =: P(t) of it, so `decode` divides by P(t). A block
whose scale is only r < 1 times the joined one is clamped less: it is multiplied by c first, c P(t / (r c)) = P(t). As
c / P(t) = 1 / P(t') with t' = t / (r c), its error is that of a block of the joined scale whose range is t'.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from sumwire.kernels.lattice.scheme import ENERGY_STEPS

SMALLEST_RANGE = 0.6
"""Of a block whose workers have equal scales. Below, c need not exist for blocks of few large coordinates."""

LEAST_LOSS = 2.0**-11
"""What clamping must take from a block to be corrected."""

ROUNDED_UP = 2.0 ** (1 / 16)
"""What rounding up to eighths of an octave multiplies a scale by, on average."""

_SMALLEST_NOMINAL = 0.5
_SOLVED = 64


def inside(clip: float) -> float:
    """P(t): the share of a standard normal within [-t, t], and what clamping to it leaves of a coordinate."""
    return math.erf(clip / math.sqrt(2.0))


def effective_range(clip: float, ratio: float) -> float:
    """t' of a block whose scale is 1/ratio of the joined one, ratio >= 1.

    >>> effective_range(2.0, 1.0), effective_range(2.0, 1.5) > 3.0
    (2.0, True)
    """
    return clip if ratio == 1.0 else _range_of(ratio * clip / inside(clip))


def nominal_range(effective: float, ratio: float) -> float:
    """t such that a block whose scale is 1/ratio of the joined one has this t'.

    >>> round(effective_range(nominal_range(2.0, 1.1), 1.1), 6)
    2.0
    """
    return max(_SMALLEST_NOMINAL, _range_of(effective / inside(effective) / ratio))


def _range_of(slope: float) -> float:
    """The x with x / P(x) = slope, which grows with x."""
    low, high = 0.0, slope
    for _ in range(50):
        middle = (low + high) / 2.0
        if middle < slope * inside(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def corrections(clip: float) -> tuple[int, ...]:
    """(c - 1) * 2**15 in the middle of each of 1024 steps of a block's energy, up to that which its terms allow.

    Below 0 everywhere, because vector code keeps c in 15 bits. Solved for 64 energies, and linear between them: c is
    off by less than 0.001.

    >>> corrections(1.5)[0] == round(32768 * (inside(1.5) - 1)), corrections(1.5)[-1]
    (True, -6)
    """
    known = np.arange(_SOLVED + 1) / _SOLVED
    ranges = [effective_range(clip, 1.0 / math.sqrt(share)) for share in known[1:].tolist()]
    c = inside(clip) / np.array([1.0, *map(inside, ranges)])
    exact = np.interp((np.arange(ENERGY_STEPS) + 0.5) / ENERGY_STEPS, known, c)
    return tuple(np.minimum(np.rint(32768.0 * (exact - 1.0)), -1.0).astype(int).tolist())


def largest_scale(workers: int, correlation: float, block: int) -> float:
    """The joined scale, which is the largest of all, relative to one worker's: Blom's estimate for Gaussian blocks."""
    order = NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))
    return 1.0 + order * math.sqrt((1.0 - correlation**2) / (2.0 * block))
