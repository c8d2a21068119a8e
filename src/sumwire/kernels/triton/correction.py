"""What a block is multiplied by so that clamping leaves no bias: kernels/lattice/correction.py, one block at a time."""

from __future__ import annotations

import triton
import triton.language as tl

from sumwire.kernels.lattice.correction import LARGEST_CORRECTION, SMALL_BLOCK
from sumwire.kernels.lattice.scheme import ENERGY_STEPS
from sumwire.kernels.triton.floats import fold16, rint32, rint64

_LAST_STEP = tl.constexpr(ENERGY_STEPS - 1)
_SMALL_BLOCK = tl.constexpr(SMALL_BLOCK)
_LARGEST = tl.constexpr(LARGEST_CORRECTION)


@triton.jit
def correct(y, correction, rotation_bits):
    """Rotated coordinates times c, rounded. y of blocks beyond 4096 must be int64."""
    if rotation_bits == 16:
        change = (y * correction + (1 << 14)) >> 15
    else:
        factor = correction.to(tl.float32) * 0.000030517578125  # 2**-15
        change = rint32(y.to(tl.float32) * factor).to(y.dtype)
    return y + change


@triton.jit
def correction_of(y, size, energy, peak, table, rotation_bits, half_range, shrink, energy_gain, BLOCK: tl.constexpr):
    """(c - 1) * 2**15 of a block, from its energy and largest magnitude before the rotation."""
    least = tl.load(table)
    found = tl.zeros([], tl.int32)
    if least != 0:
        found = looked_up(table, energy, energy_gain)
        if (has_peaks(energy, peak) | (size < _SMALL_BLOCK)) & (energy > 0):
            for _ in range(2):
                found = _improved(y, size, energy, found, least, rotation_bits, half_range, shrink, BLOCK)
    return found


@triton.jit
def _improved(y, size, energy, correction, least, rotation_bits, half_range, shrink, BLOCK: tl.constexpr):
    """One step of Newton's method."""
    y = tl.abs(y)
    sent = correct(y, correction, rotation_bits)
    clamped = tl.minimum(sent, half_range)
    inside = tl.where(sent < half_range, y, 0)
    if rotation_bits == 16:  # sums below 2**53, so that their order does not matter
        kept = tl.sum(y.to(tl.int64) * clamped.to(tl.int64), axis=0).to(tl.float64)
        slope = tl.sum(inside.to(tl.int64) * inside.to(tl.int64), axis=0).to(tl.float64)
    else:
        wide = inside.to(tl.float64)
        kept = fold16(y.to(tl.float64) * clamped.to(tl.float64), size, BLOCK)
        slope = fold16(wide * wide, size, BLOCK)
    return improved(kept, slope, energy, size, correction, least, shrink)


@triton.jit
def looked_up(table, energy, energy_gain):
    """The correction of a Gaussian block."""
    return tl.load(table + tl.minimum((energy.to(tl.float64) * energy_gain).to(tl.int64), _LAST_STEP))


@triton.jit
def has_peaks(energy, peak):
    """Whether few coordinates have most of the energy, so that the rotated block is not Gaussian."""
    return 8 * peak * peak > energy


@triton.jit
def improved(kept, slope, energy, size, correction, least, shrink):
    """The next correction, given sum(y clip(c y)) and the slope of that."""
    all_ = energy.to(tl.float64) * size.to(tl.float64)
    step = 32768.0 * (shrink * all_ - kept) / tl.maximum(slope, tl.full([], 0.05, tl.float64) * all_)
    moved = correction + rint64(step).to(tl.int64)
    return tl.minimum(tl.maximum(moved, least.to(tl.int64)), _LARGEST).to(tl.int32)


@triton.jit
def offset_of(half_range, correction):
    """What is added to coordinates before they are multiplied by c, so that they count from the bottom of the range."""
    c = 32768 + correction.to(tl.int64)
    return ((65536 * half_range.to(tl.int64) + c) // (2 * c)).to(tl.int32)
