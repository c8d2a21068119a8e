"""Scales on a logarithmic raster, eight to the octave, so that a byte holds one.

`RASTER` has the float32 bits of all of them: 2**(j/8) rounded up, times powers of two; below the smallest normal
number, powers of two alone. A scale's *step* is its place there. Everything compares integers, so every platform gets
the same bits. A *code* 1..255 counts steps down from the largest scale of a tensor, which has 255; 0 is a scale of 0.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes, Floats

Words = NDArray[np.uint32]

LARGEST_SCALE = np.float32(2.0**115)
"""Blocks with a larger rms could decode to more than float32 holds."""

CODES = 255
"""Scales of a tensor span 254 steps, 31.75 octaves: what is further below the largest is rounded up to that."""

FRACTIONS = np.array([0x0, 0xB95C2, 0x1837F1, 0x25FED7, 0x3504F4, 0x45672B, 0x5744FD, 0x6AC0C7], np.uint32)
"""2**(j/8) - 1 in units of 2**-23, rounded up: the fractions of normal scales."""

_NORMAL = 1 << 23
_OCTAVES = np.arange(_NORMAL, int(LARGEST_SCALE.view(np.uint32)), _NORMAL, dtype=np.uint32)
RASTER: Words = np.concatenate(
    [
        np.uint32(1) << np.arange(23, dtype=np.uint32),
        (_OCTAVES[:, None] + FRACTIONS).reshape(-1),
        np.array([LARGEST_SCALE]).view(np.uint32),
    ]
)
"""Bits of all scales above 0, in order."""

MOST_STEP = len(RASTER) - 1

_WHICH = np.zeros(16, np.uint8)
"""j by the upper four bits of a fraction, which tell all eight apart."""
_WHICH[FRACTIONS >> np.uint32(19)] = np.arange(8)


def round_scales(scales: Floats) -> None:
    """Round scales up to the raster, and to no less than 254 steps below the largest of them, in place.

    What is 0 stays 0. What no terms may hold, above 2**115 or NaN, stays as it is.
    """
    bits = scales.view(np.uint32)
    live = (bits > 0) & (bits <= RASTER[-1])
    steps = np.searchsorted(RASTER, bits[live])
    bits[live] = RASTER[np.maximum(steps, steps.max(initial=0) - (CODES - 1))]


def round_down(scales: Floats) -> None:
    """Round scales down to the raster, in place; all are 0, or in the range of terms."""
    bits = scales.view(np.uint32)
    live = bits > 0
    bits[live] = RASTER[np.searchsorted(RASTER, bits[live], side="right") - 1]


def steps_of(bits: Words) -> NDArray[np.int32]:
    """Steps of scales on the raster, by their bits; below 0 where a scale is 0.

    >>> steps_of(RASTER[[0, 5, 40, 1951]]).tolist(), steps_of(np.zeros(1, np.uint32)).tolist()
    ([0, 5, 40, 1951], [-1])
    """
    steps: NDArray[np.int32] = (bits >> np.uint32(23)).astype(np.int32) * 8 + (23 - 8)
    steps += _WHICH[bits >> np.uint32(19) & np.uint32(15)]
    low = np.flatnonzero(bits < _NORMAL)
    if len(low):
        steps[low] = np.where(bits[low] > 0, np.searchsorted(RASTER, bits[low]), -1)
    return steps


def largest_step(scales: Floats) -> int:
    """The step of the largest scale, all being on the raster; 0 if all are 0."""
    top = scales.view(np.uint32).max(initial=0)
    return int(RASTER.searchsorted(top))


def codes_of(scales: Floats, base: int) -> Bytes:
    """The byte of each scale, where `base` is the step of the largest, here or elsewhere.

    >>> codes_of(np.array([1.0, 0.5, 0.0, 2.0**-40], np.float32), 23 + 8 * 126).tolist()
    [255, 247, 0, 1]
    """
    bits = scales.view(np.uint32)
    codes: Bytes = _normal_codes(base)[bits >> np.uint32(19)]
    if bits.min(initial=_NORMAL) < _NORMAL:
        low = np.flatnonzero(bits < _NORMAL)
        codes[low] = _codes_at(bits[low], base)
    return codes


def _codes_at(bits: Words, base: int) -> Bytes:
    steps = steps_of(bits)
    return np.where(steps >= 0, np.maximum(steps + (CODES - base), 1), 0).astype(np.uint8)


@lru_cache(maxsize=64)
def _normal_codes(base: int) -> Bytes:
    """Codes by exponent and upper four bits of the fraction, which tell all normal scales of the raster apart."""
    return _codes_at(np.arange(1 << 12, dtype=np.uint32) << np.uint32(19), base)


def scales_of(codes: Bytes, base: int) -> Floats:
    """The scales that bytes stand for.

    >>> scales_of(np.array([255, 247, 0], np.uint8), 23 + 8 * 126).tolist()
    [1.0, 0.5, 0.0]
    """
    return _known_scales(base)[codes]


@lru_cache(maxsize=64)
def _known_scales(base: int) -> Floats:
    """Scales by code."""
    known = RASTER[np.maximum(np.arange(-CODES, 1) + base, 0)]
    known[0] = 0
    return known.view(np.float32)


def join_codes(codes: Bytes, lower: NDArray[np.int64]) -> Bytes:
    """The largest code of each column, where row k counts from a base that is `lower[k]` below the joined one.

    >>> join_codes(np.array([[255, 9, 0], [255, 0, 0]], np.uint8), np.array([10, 0])).tolist()
    [255, 1, 0]
    """
    drop = np.minimum(lower, CODES).astype(np.uint8)[:, None]
    joined: Bytes = np.maximum(np.maximum(codes, drop) - drop, codes > 0).max(axis=0)
    return joined
