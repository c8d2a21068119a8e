"""Rotate, clamp, quantize and pack: one read of the tensor, one write of the payload, and of the residual if any."""

from __future__ import annotations

import triton
import triton.language as tl

from sumwire.kernels.triton.correction import correct, correction_of, offset_of
from sumwire.kernels.triton.decode import to_floats
from sumwire.kernels.triton.floats import rint32, unlift
from sumwire.kernels.triton.planes import store_bits, store_planes
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
)


@triton.jit
def to_units(values, lift, gain, dither, dither_bits):
    """Coordinates in units of the integer rotation, by stochastic rounding; and which no terms cover, as NaN."""
    scaled = rint32((values * lift) * gain)
    outside = ~(tl.abs(scaled) < 2147352576.0)  # 2**31 - 2**17; NaN, too
    units = (tl.where(outside, 0.0, scaled).to(tl.int32) + dither.to(tl.int32)) >> dither_bits
    return units, outside


@triton.jit
def on_table(y, noise, change, cells, half_range, rotation_bits, fraction_bits, LARGE: tl.constexpr):
    """Rotated coordinates onto the lattice, then up or down to the table: its indices, and their lattice values.

    Of the noise only the lower 16 bits are used.
    """
    # Counted from the bottom of the range.
    y = wrap(y + offset_of(half_range, change), rotation_bits)
    if LARGE:  # times c may exceed int32
        y = y.to(tl.int64)
    position = tl.minimum(tl.maximum(correct(y, change, rotation_bits), 0), 2 * half_range).to(tl.int32)
    cell = tl.load(cells + (position >> fraction_bits))
    below = (cell >> 8).to(tl.int32) & 0xFFFF
    gap = (cell >> 24).to(tl.int32)
    step = gap << fraction_bits
    above = position - (below << fraction_bits)
    # noise * step >> 16, where noise has 16 bits
    up = above + tl.umulhi(noise << 16, step.to(tl.uint32)).to(tl.int32) >= step
    return (cell & 255).to(tl.int32) + up.to(tl.int32), below + tl.where(up, gap, 0)


@triton.jit
def wrap(y, rotation_bits):
    """The lower 16 or all 32 bits."""
    return tl.where(rotation_bits == 16, (y << 16) >> 16, y)


@triton.jit(do_not_specialize=["sign_key", "noise_key", "dither_key", "shift", "lo", "first", "count"])
def encode_kernel(
    x, scales, classes, widths, bits_at, ints, floats, limits, gains, roots, corrections, cells, cells_at,
    out, words, residual, bad, sign_key, noise_key, dither_key, shift, lo, logs, starts, first, count,
    ROTATE: tl.constexpr, RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """EACH blocks per program, which share the patterns of signs, noise and dither.

    `bad` becomes the first block, counted from lo, that its terms do not cover.
    """
    lane = tl.arange(0, BLOCK)
    negative = (hash32(sign_key, lane) >> 31) != 0
    # Of the dither only the upper 16 bits are used, of the noise only the lower 16.
    pattern = (hash32(dither_key, lane) & 0xFFFF0000) | (hash32(noise_key, lane) & 0xFFFF)
    begin = tl.program_id(0) * EACH
    for number in range(begin, tl.minimum(begin + EACH, count)):
        block = first + number
        log = tl.full([], LOG, tl.int32)
        inside = lane >= 0
        if TAIL:
            log = tl.load(logs + block)
            inside = lane < (1 << log)
        size = (1 << log).to(tl.int32)
        start = tl.load(starts + block)
        width = tl.load(widths + block).to(tl.int32)
        values = tl.load(x + start + lane, mask=inside, other=0.0).to(tl.float32)
        if width == 0:
            if RESIDUAL:
                tl.store(residual + start + lane, values, mask=inside)
        else:
            cls = tl.load(classes + block).to(tl.int32)
            row = ints + cls * INTS
            half_range = tl.load(row + HALF_RANGE).to(tl.int32)
            rotation_bits = tl.load(row + ROTATION_BITS).to(tl.int32)
            dither_bits = tl.load(row + DITHER_BITS).to(tl.int32)
            fraction_bits = tl.load(row + FRACTION_BITS).to(tl.int32)
            scale = tl.load(scales + block)
            wide, lift, _ = unlift(scale)
            gain = (tl.load(gains + cls * LOGS + log) / wide).to(tl.float32)

            dither = (pattern ^ block_word(dither_key, lo + block)) >> (32 - dither_bits).to(tl.uint32)
            units, outside = to_units(values, lift, gain, dither, dither_bits)
            units = tl.where(inside, units, 0)
            squares = units.to(tl.int64) * units.to(tl.int64)
            energy = tl.sum(squares, axis=0)
            peak = tl.max(tl.abs(units), axis=0).to(tl.int64)
            measured = energy
            if not ROTATE:
                measured = peak * peak
            beyond = measured > tl.load(limits + cls * LOGS + log)
            beyond |= tl.max(outside.to(tl.int32), axis=0) != 0
            if beyond:
                tl.atomic_min(bad, block)
            else:
                y = tl.where(negative, -units, units)
                if ROTATE:
                    y = wrap(rotate(y, size, BLOCK, LOG, TAIL), rotation_bits)
                table = corrections + cls * STEPS
                shrink = tl.load(floats + cls * FLOATS + SHRINK)
                energy_gain = tl.load(floats + cls * FLOATS + ENERGY_GAIN)
                change = correction_of(
                    y, size, energy, peak, table, rotation_bits, half_range, shrink, energy_gain, BLOCK
                )

                noise = pattern + block_word(noise_key, lo + block) + shift.to(tl.uint32)
                table = cells + tl.load(cells_at + cls * CLASSES + width)
                index, value = on_table(y, noise, change, table, half_range, rotation_bits, fraction_bits, False)
                at = tl.load(bits_at + block)
                if TAIL:
                    store_bits(words, index, at - tl.load(bits_at + first), width, size, BLOCK)
                else:
                    store_planes(out + (at >> 3), index, width, BLOCK, 8)

                if RESIDUAL:
                    own = 2 * value - tl.load(row + GRANULARITY).to(tl.int32)
                    if TAIL:
                        own = tl.where(inside, own, 0)
                    unit = tl.load(floats + cls * FLOATS + DECODE_GAIN)
                    root = tl.load(roots + log)
                    mean = to_floats(own, scale, unit, root, negative, size, ROTATE, BLOCK, LOG, TAIL)
                    if TAIL:  # where sm_90 would spill: load it again, as it is still in the cache
                        values = tl.load(x + start + lane, mask=inside, other=0.0).to(tl.float32)
                    tl.store(residual + start + lane, values - mean, mask=inside)
