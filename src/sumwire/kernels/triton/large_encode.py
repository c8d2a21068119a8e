"""encode.py for blocks that no program holds: across parts from the tensor to scratch memory, then part by part."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from sumwire.kernels.lattice.scheme import Scheme
from sumwire.kernels.triton.correction import correct, has_peaks, improved, looked_up
from sumwire.kernels.triton.decode import gain_of
from sumwire.kernels.triton.encode import on_table, to_units, wrap
from sumwire.kernels.triton.floats import fold_halves, unlift
from sumwire.kernels.triton.large_decode import mean_kernel
from sumwire.kernels.triton.parts import LOG_PART, LOG_STRIP, PART, STRIP, Parts, lanes_of
from sumwire.kernels.triton.planes import store_planes
from sumwire.kernels.triton.random import block_word, hash32
from sumwire.kernels.triton.rotation import rotate
from sumwire.kernels.triton.scheme import (
    CLASSES,
    DECODE_GAIN,
    DITHER_BITS,
    ENERGY_GAIN,
    FLOATS,
    FRACTION_BITS,
    GRANULARITY,
    HALF_RANGE,
    INTS,
    LOGS,
    ROTATION_BITS,
    SHRINK,
    STEPS,
    DeviceScheme,
)

_BEYOND = tl.constexpr(1 << 50)
"""More energy than any terms allow. Strips add no more than that, so that the sum stays within int64."""


@triton.jit(do_not_specialize=["sign_key", "dither_key", "lo", "first"])
def spread_kernel(
    x, scales, classes, widths, ints, gains, energies, peaks, scratch, sign_key, dither_key, lo, starts, first,
    ROTATE: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Units of the integer rotation, mixed across parts; energy and largest magnitude of each block.

    Without rotation, the energy is that of the largest coordinate.
    """
    strip = tl.program_id(0) % (BLOCK // STRIP)
    block = first + tl.program_id(0) // (BLOCK // STRIP)
    lane = lanes_of(strip, BLOCK)
    width = tl.load(widths + block)
    if width > 0:
        start = tl.load(starts + block)
        cls = tl.load(classes + block).to(tl.int32)
        dither_bits = tl.load(ints + cls * INTS + DITHER_BITS).to(tl.int32)
        wide, lift, _ = unlift(tl.load(scales + block))
        gain = (tl.load(gains + cls * LOGS + LOG) / wide).to(tl.float32)
        values = tl.load(x + start + lane).to(tl.float32)
        dither = (hash32(dither_key, lane) ^ block_word(dither_key, lo + block)) >> (32 - dither_bits).to(tl.uint32)
        units, outside = to_units(values, lift, gain, dither, dither_bits)
        beyond = tl.max(outside.to(tl.int32), axis=0) != 0
        peak = tl.max(tl.abs(units), axis=0)
        if ROTATE:
            energy = tl.sum(units.to(tl.int64) * units.to(tl.int64), axis=0)
            tl.atomic_add(energies + block, tl.where(beyond, _BEYOND, tl.minimum(energy, _BEYOND)))
            tl.atomic_max(peaks + block, peak)
        else:
            energy = peak.to(tl.int64) * peak.to(tl.int64)
            tl.atomic_max(energies + block, tl.where(beyond, _BEYOND, energy))
        y = tl.where((hash32(sign_key, lane) >> 31) != 0, -units, units)
        if ROTATE:
            y = rotate(y, STRIP, STRIP, LOG_STRIP, False, LOG_STRIP + LOG_PART - LOG)
        tl.store(scratch + (start - tl.load(starts)) + lane, y)


@triton.jit
def complete_kernel(scratch, energies, peaks, classes, widths, corrections, owners, logs, starts):
    """The rest of the rotation, in scratch memory, of blocks for which Newton's method needs all of it."""
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(owners + part)
    if _needs_newton(energies, peaks, classes, widths, corrections, block):
        at = scratch + part * PART + tl.arange(0, PART)
        tl.store(at, rotate(tl.load(at), PART, PART, LOG_PART, False))


@triton.jit
def _needs_newton(energies, peaks, classes, widths, corrections, block):
    """Whether a block is corrected, and not Gaussian."""
    energy, peak = tl.load(energies + block), tl.load(peaks + block).to(tl.int64)
    table = corrections + tl.load(classes + block).to(tl.int32) * STEPS
    return (tl.load(widths + block) > 0) & (tl.load(table) != 0) & has_peaks(energy, peak) & (energy > 0)


@triton.jit
def correction_kernel(
    scratch, energies, peaks, classes, widths, ints, floats, corrections, changes, logs, starts
):  # fmt: skip
    """`correction_of` each block. Sums of Newton's method are in the order of `arrays.fold16`: one row by one."""
    block = tl.program_id(0)
    cls = tl.load(classes + block).to(tl.int32)
    table = corrections + cls * STEPS
    least = tl.load(table)
    if (tl.load(widths + block) > 0) & (least != 0):
        energy = tl.load(energies + block)
        found = looked_up(table, energy, tl.load(floats + cls * FLOATS + ENERGY_GAIN))
        if _needs_newton(energies, peaks, classes, widths, corrections, block):
            size = tl.full([], 1, tl.int64) << tl.load(logs + block).to(tl.int64)
            y = scratch + (tl.load(starts + block) - tl.load(starts))
            half_range = tl.load(ints + cls * INTS + HALF_RANGE)
            rotation_bits = tl.load(ints + cls * INTS + ROTATION_BITS).to(tl.int32)
            shrink = tl.load(floats + cls * FLOATS + SHRINK)
            for _ in range(2):
                kept, slope = _clamped_sums(y, size, found, half_range, rotation_bits)
                found = improved(kept, slope, energy, size, found, least, shrink)
        tl.store(changes + block, found)


@triton.jit
def _clamped_sums(scratch, size, correction, half_range, rotation_bits):
    """sum(y clip(c y)) of a block's magnitudes, and sum(y y) of what is not clamped."""
    kept = tl.zeros([16], tl.float64)
    slope = tl.zeros([16], tl.float64)
    for k in range(0, size, 256):
        for row in tl.static_range(16):  # loads of 16 rows under way at once, as in measure.py
            y = tl.abs(wrap(tl.load(scratch + k + 16 * row + tl.arange(0, 16)), rotation_bits).to(tl.int64))
            sent = correct(y, correction, rotation_bits)
            wide = y.to(tl.float64)
            kept += wide * tl.minimum(sent, half_range).to(tl.float64)
            slope += tl.where(sent < half_range, wide * wide, 0.0)
    kept = tl.sum(fold_halves(tl.reshape(kept, [1, 16]), 1))
    return kept, tl.sum(fold_halves(tl.reshape(slope, [1, 16]), 1))


@triton.jit(do_not_specialize=["noise_key", "shift", "lo"])
def quantize_kernel(
    scratch, energies, peaks, changes, scales, classes, widths, bits_at, ints, floats, limits, roots, corrections,
    cells, cells_at, out, factors, bad, noise_key, shift, lo, owners, logs, starts,
    ROTATE: tl.constexpr, RESIDUAL: tl.constexpr, CORRECT: tl.constexpr,
):  # fmt: skip
    """The rest of the rotation, and indices. With RESIDUAL, these go back to scratch memory: rotated within parts."""
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(owners + part)
    width = tl.load(widths + block).to(tl.int32)
    if width > 0:
        cls = tl.load(classes + block).to(tl.int32)
        log = tl.load(logs + block)
        if tl.load(energies + block) > tl.load(limits + cls * LOGS + log):
            tl.atomic_min(bad, block)
        else:
            lane = tl.arange(0, PART)
            here = scratch + part * PART + lane
            begin = (part * PART - (tl.load(starts + block) - tl.load(starts))).to(tl.int32)
            row = ints + cls * INTS
            rotation_bits = tl.load(row + ROTATION_BITS).to(tl.int32)
            y = tl.load(here)
            change = tl.full([], 0, tl.int32)
            if CORRECT:
                change = tl.load(changes + block)
                if not _needs_newton(energies, peaks, classes, widths, corrections, block):
                    y = rotate(y, PART, PART, LOG_PART, False)
            elif ROTATE:
                y = rotate(y, PART, PART, LOG_PART, False)
            y = wrap(y, rotation_bits)
            noise = hash32(noise_key, begin + lane) + block_word(noise_key, lo + block) + shift.to(tl.uint32)
            half_range = tl.load(row + HALF_RANGE).to(tl.int32)
            fraction_bits = tl.load(row + FRACTION_BITS).to(tl.int32)
            table = cells + tl.load(cells_at + cls * CLASSES + width)
            index, value = on_table(y, noise, change, table, half_range, rotation_bits, fraction_bits, True)
            at = tl.load(bits_at + block) + begin.to(tl.int64) * width
            store_planes(out + (at >> 3), index, width, PART, 8)
            if RESIDUAL:
                own = 2 * value - tl.load(row + GRANULARITY).to(tl.int32)
                if ROTATE:
                    own = rotate(own, PART, PART, LOG_PART, False)
                tl.store(here, own)
                if begin == 0:
                    unit = tl.load(floats + cls * FLOATS + DECODE_GAIN)
                    tl.store(factors + block, gain_of(tl.load(scales + block), unit, tl.load(roots + log)))


def encode(
    scheme: Scheme,
    on: DeviceScheme,
    parts: Parts,
    x: torch.Tensor,
    per_block: list[torch.Tensor],
    streams: dict[str, int],
    out: torch.Tensor,
    residual: torch.Tensor | None,
    bad: torch.Tensor,
    lo: int,
) -> None:
    """The large blocks of `lattice.encode`, whose scales, classes, widths and bits_at are in per_block."""
    scales, classes, widths, bits_at = per_block
    scratch, energies, peaks = parts.scratch(), parts.per_block(torch.int64), parts.per_block(torch.int32)
    changes, factors = parts.per_block(torch.int32), parts.per_block(torch.float32)
    parts.across(
        spread_kernel,
        x, scales, classes, widths, on.ints, on.gains, energies, peaks, scratch, streams["sign"], streams["dither"], lo,
        ROTATE=scheme.rotate,
    )  # fmt: skip
    corrected = any(spec is not None and spec.corrections[0] != 0 for spec in scheme.lattices)
    if corrected:
        shared: tuple[Any, ...] = (scratch, energies, peaks, classes, widths)
        parts.within(complete_kernel, *shared, on.corrections)
        parts.each(correction_kernel, *shared, on.ints, on.floats, on.corrections, changes)
    parts.within(
        quantize_kernel,
        scratch, energies, peaks, changes, scales, classes, widths, bits_at, on.ints, on.floats, on.limits, on.roots,
        on.corrections, on.cells, on.cells_at, out, factors, bad, streams["noise"], streams["shift"], lo,
        ROTATE=scheme.rotate, RESIDUAL=residual is not None, CORRECT=corrected,
    )  # fmt: skip
    if residual is not None:
        parts.across(
            mean_kernel, scratch, factors, scales, x, residual, streams["sign"], ROTATE=scheme.rotate, RESIDUAL=True
        )
