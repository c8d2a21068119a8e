"""What a worker multiplies its blocks by, so that clamping them leaves no bias.

Clamping to [-t s, t s] leaves P(t) = P(|N(0, 1)| < t) of a block whose scale is the joined scale s, and more of a
quieter one: E[y clip(y)] = P(t s / s_r) E[y^2] for Gaussian y of scale s_r. `decode` divides by P(t), so a worker
multiplies its rotated block y by the c that solves sum(y clip(c y)) = P(t) sum(y^2).
"""

from __future__ import annotations

import numpy as np

from sumwire.kernels.arrays import Doubles, Ints, fold16
from sumwire.kernels.lattice.scheme import ENERGY_STEPS, LatticeSpec

SMALL_BLOCK = 256
"""Rotated coordinates of smaller blocks are not Gaussian enough to look c up."""

NEWTON_STEPS = 2
LARGEST_CORRECTION = 1 << 13
"""c is at most 1.25."""


def corrections(spec: LatticeSpec, units: Ints, y: Ints) -> Ints:
    """(c - 1) * 2**15 of each block, from its coordinates before and after the rotation.

    The rotation keeps the energy, so that of `units` tells the scale of y, and a table c for Gaussian y. Where few
    coordinates hold most of the energy, y is not Gaussian: Newton's method improves c on y itself.
    """
    if not spec.corrections[0]:
        return np.zeros(len(units), np.int64)
    size = units.shape[1]
    energy, peak = np.square(units).sum(axis=1), np.abs(units).max(axis=1)
    step = (energy.astype(np.float64) * spec.energy_gain).astype(np.int64)
    found: Ints = np.array(spec.corrections)[np.minimum(step, ENERGY_STEPS - 1)]
    spiky = np.flatnonzero(((8 * peak * peak > energy) | (size < SMALL_BLOCK)) & (energy > 0))
    for _ in range(NEWTON_STEPS if len(spiky) else 0):
        found[spiky] = _improved(spec, np.abs(y[spiky]), found[spiky], energy[spiky].astype(np.float64) * size)
    return found


def _improved(spec: LatticeSpec, y: Ints, correction: Ints, energy: Doubles) -> Ints:
    """One step of Newton's method, for magnitudes y of this energy."""
    sent = correct(spec, y, correction)
    magnitude, clamped = y.astype(np.float64), np.minimum(sent, spec.half_range).astype(np.float64)
    kept = fold16(magnitude * clamped)
    slope = fold16(np.where(sent < spec.half_range, magnitude * magnitude, 0.0))
    step = np.rint(32768.0 * (spec.shrink * energy - kept) / np.maximum(slope, 0.05 * energy))
    improved: Ints = np.clip(correction + step.astype(np.int64), spec.corrections[0], LARGEST_CORRECTION)
    return improved


def offset(spec: LatticeSpec, correction: Ints) -> Ints:
    """What is added to coordinates before they are multiplied by c, so that they count from the bottom of the range."""
    c = 32768 + correction
    return (65536 * spec.half_range + c) // (2 * c)


def correct(spec: LatticeSpec, y: Ints, correction: Ints) -> Ints:
    """Rotated coordinates times c, rounded."""
    if spec.rotation_bits == 16:
        return y + (y * correction[:, None] + (1 << 14) >> 15)
    factor = (correction * 2.0**-15).astype(np.float32)
    change: Ints = np.rint(y.astype(np.float32) * factor[:, None]).astype(np.int64)
    return y + change
