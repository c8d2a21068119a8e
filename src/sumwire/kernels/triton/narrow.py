"""Narrow sums: kernels/lattice/narrowing.py, one block per program.

The roundings of float64 here are per block: square root, divisions, products, all correctly rounded. Widths are chosen
between the two kernels, on the host, from one byte per block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sumwire.kernels.lattice.narrow_tables import CELLS, MAX_MAGNITUDE
from sumwire.kernels.triton.decode import around_zero, to_floats
from sumwire.kernels.triton.floats import exponent_of, power_of_two, rint64
from sumwire.kernels.triton.planes import load_bits, load_bytes, load_planes, store_bits, store_planes
from sumwire.kernels.triton.random import hash32
from sumwire.kernels.triton.scheme import DECODE_GAIN, FLOATS, GRANULARITY, INTS, LANE_BITS, LANE_BYTES

_SHIFTED = tl.constexpr(20)
_TIES = tl.constexpr(0x71E5)
_TIES_PERIOD = tl.constexpr(4096)
_CELLS = tl.constexpr(CELLS)
_MAX_MAGNITUDE = tl.constexpr(MAX_MAGNITUDE)
_HALF = tl.constexpr(128)
_LINES = tl.constexpr(5)


@triton.jit
def centered_lanes(lanes, at, cls, payloads, lane, inside, ints):
    """Lanes around 0, of at most 20 bits; the bits they had, and by how many they were shifted."""
    row = ints + cls * INTS
    each = tl.load(row + LANE_BYTES).to(tl.int32)
    total = load_bytes(lanes + at + lane * each, each, inside).to(tl.uint32, bitcast=True).to(tl.int64)
    top = payloads.to(tl.int64) * tl.load(row + GRANULARITY)
    length, shift = lengths_of(top)
    return tl.where(inside, (2 * total - top) >> shift.to(tl.int64), 0), length, shift


@triton.jit
def lengths_of(top):
    """The bits of lanes up to `top`, and by how many they are shifted."""
    length = exponent_of(top.to(tl.float64))
    return length, tl.maximum(length - _SHIFTED, 0)


@triton.jit
def rms_of(squares, size):
    return tl.sqrt(squares.to(tl.float64) / size.to(tl.float64))


@triton.jit
def _centered(lanes, at, cls, payloads, size, inside, ints, BLOCK: tl.constexpr):
    """As `centered_lanes`, of a block; and its squares and rms."""
    centered, length, shift = centered_lanes(lanes, at, cls, payloads, tl.arange(0, BLOCK), inside, ints)
    squares = tl.sum(centered * centered, axis=0)
    return centered.to(tl.int32), length, shift, squares, rms_of(squares, size)


@triton.jit(do_not_specialize=["first", "count"])
def coarse_kernel(
    lanes, lanes_at, classes, counts, ints, floats, above, coarse, logs, starts, first, count,
    BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """rms of each block's mean relative to its scale, in eighths of an octave; 0 if the sum is zero."""
    lane = tl.arange(0, BLOCK)
    block = first + tl.program_id(0)
    size = tl.full([], BLOCK, tl.int32)
    if TAIL:
        size = 1 << tl.load(logs + block)
    cls = tl.load(classes + block).to(tl.int32)
    payloads = tl.load(counts + block)
    found = tl.zeros([], tl.int32)
    if (tl.load(ints + cls * INTS + LANE_BYTES) > 0) & (payloads > 0):
        at = tl.load(lanes_at + block)
        _, _, shift, squares, rms = _centered(lanes, at, cls, payloads, size, lane < size, ints, BLOCK)
        unit = tl.load(floats + cls * FLOATS + DECODE_GAIN) / payloads.to(tl.float64)
        found = coarse_of(squares, rms, shift, unit, above)
    tl.store(coarse + block, found.to(tl.uint8))


@triton.jit
def coarse_of(squares, rms, shift, unit, above):
    """`segments.coarse_of`; 0 if the sum is zero."""
    value = ((rms * power_of_two(shift)) * unit).to(tl.float32).to(tl.int32, bitcast=True)
    cut = tl.load(above + tl.arange(0, 8))
    nearest = tl.sum((cut <= (value & 0x7FFFFF)).to(tl.int32), axis=0)
    eighths = 8 * ((value >> 23) - 127) + nearest
    return tl.where(squares > 0, tl.minimum(tl.maximum(231 + eighths, 1), 255), 0)


@triton.jit
def _gain(gain):
    return tl.minimum(rint64(gain), 65535.0).to(tl.int64).to(tl.int32)


@triton.jit
def _magnitudes(centered, length, rms, width, magnitudes, quantizers, lines):
    """The magnitude's index of each lane."""
    log = exponent_of(rms) - 1
    room = 15 - length
    exponent = 11 - log
    by_cell = width <= 5
    exponent = tl.where(by_cell & (room >= 0), tl.maximum(room, 7 - log), exponent)
    exponent = tl.minimum(exponent, 14)
    up, down = tl.maximum(exponent, 0), tl.maximum(-exponent, 0)
    scaled = tl.minimum(tl.abs(centered) >> down, _MAX_MAGNITUDE >> up) << up
    inverse = tl.full([], 1.0, tl.float64) / (rms * power_of_two(exponent))
    if by_cell:
        density = tl.load(quantizers + width * 2)
        cell = tl.minimum((scaled * _gain(density * 65536.0 * inverse)) >> 16, _CELLS - 1)
        found = tl.load(magnitudes + width * _CELLS + cell).to(tl.int32)
    else:
        least = tl.full(scaled.shape, 0x7FFFFFFF, tl.int32)
        for k in tl.static_range(_LINES):
            slope = tl.load(lines + (width * _LINES + k) * 2).to(tl.float64)
            offset = tl.load(lines + (width * _LINES + k) * 2 + 1)
            least = tl.minimum(least, ((scaled * _gain(slope * 16.0 * inverse)) >> 16) + offset)
        found = tl.minimum(least >> (13 - width), (1 << (width - 1)) - 1)
    return found


@triton.jit
def quantize(centered, lane, length, rms, width, magnitudes, levels, quantizers, lines):
    """The index of each lane, and the products whose sum tells the block's scale."""
    magnitude = _magnitudes(centered, length, rms, width, magnitudes, quantizers, lines)
    # Zeros to both sides: all to one would put the error of a block into one coordinate.
    ties = (hash32(tl.full([], _TIES, tl.int32), lane % _TIES_PERIOD) & 1).to(tl.int32)
    index = (1 << (width - 1)) + tl.where(ties > centered, -1 - magnitude, magnitude)
    level = tl.load(levels + width * 2 * _HALF + _HALF + magnitude).to(tl.int64)
    return index, tl.abs(centered).to(tl.int64) * level


@triton.jit
def fine_of(squares, product, shift, value, unit):
    """`segments.fine_of` of a block whose indices decode to `value` times its product."""
    ratio = (squares.to(tl.float64) * power_of_two(shift)) * unit
    ratio = ratio / (product.to(tl.float64) * value)
    scaled = ratio / 1.5
    exponent = exponent_of(scaled)
    mantissa = scaled * power_of_two(-exponent)
    large = 176.0 + 16.0 * (exponent - 1).to(tl.float64) + rint64((2.0 * mantissa - 1.0) * 16.0)
    near = tl.where(ratio < 0.875, rint64((ratio - 0.5) * 64.0), 24.0 + rint64((ratio - 0.875) * 512.0))
    usual = tl.where(ratio < 1.125, near, 152.0 + rint64((ratio - 1.125) * 64.0))
    return tl.minimum(tl.maximum(tl.where(ratio < 1.5, usual, large), 0.0), 255.0).to(tl.int32)


@triton.jit(do_not_specialize=["first", "count"])
def narrow_kernel(
    lanes, lanes_at, classes, counts, widths, bits_at, ints, floats, coarse, coarse_values, magnitudes, levels,
    quantizers, lines, fine, out, words, logs, starts, first, count, WIDEST: tl.constexpr,
    BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Indices of the given widths, packed, and `fine`. A block whose width is that of its lanes keeps them."""
    lane = tl.arange(0, BLOCK)
    block = first + tl.program_id(0)
    size = tl.full([], BLOCK, tl.int32)
    if TAIL:
        size = 1 << tl.load(logs + block)
    inside = lane < size
    cls = tl.load(classes + block).to(tl.int32)
    width = tl.load(widths + block).to(tl.int32)
    row = ints + cls * INTS
    exact = tl.load(row + LANE_BITS).to(tl.int32)
    if (exact > 0) & (width > 0):
        at = tl.load(lanes_at + block)
        if width < exact:
            payloads = tl.load(counts + block)
            centered, length, shift, squares, rms = _centered(lanes, at, cls, payloads, size, inside, ints, BLOCK)
            index, weighted = quantize(centered, lane, length, rms, width, magnitudes, levels, quantizers, lines)
            unit = payloads.to(tl.float64) / tl.load(floats + cls * FLOATS + DECODE_GAIN)
            rough = tl.load(coarse_values + tl.load(coarse + block).to(tl.int32)).to(tl.float64)
            found = fine_of(squares, tl.sum(weighted, axis=0), shift, rough * unit, tl.load(quantizers + width * 2 + 1))
            tl.store(fine + block, found.to(tl.uint8))
        else:
            each = tl.load(row + LANE_BYTES).to(tl.int32)
            index = load_bytes(lanes + at + lane * each, each, inside)
        begin = tl.load(bits_at + block)
        if TAIL:
            store_bits(words, index, begin - tl.load(bits_at + first), width, size, BLOCK)
        else:
            store_planes(out + (begin >> 3), index, width, BLOCK, WIDEST)


@triton.jit
def sum_of(
    index, block, width, exact, cls, payloads, inside, ints, floats, coarse, fine, coarse_values, fine_values, levels,
    quantizers, WIDE: tl.constexpr,
):  # fmt: skip
    """What indices stand for, around 0; the unit of that, and by what it is divided but for the root of the size."""
    if width == exact:  # lanes, as they were
        centered = around_zero(index, payloads.to(tl.int64), tl.load(ints + cls * INTS + GRANULARITY), WIDE)
        unit = tl.load(floats + cls * FLOATS + DECODE_GAIN)
        divisor = payloads.to(tl.float64)
    else:
        level = tl.load(levels + width * 2 * _HALF + _HALF - (1 << (width - 1)) + index, mask=inside, other=0)
        if WIDE:
            centered = level.to(tl.int64)
        else:
            centered = level
        rough = tl.load(coarse_values + tl.load(coarse + block).to(tl.int32)).to(tl.float64)
        exactly = tl.load(fine_values + tl.load(fine + block).to(tl.int32))
        unit = rough * exactly / tl.load(quantizers + width * 2 + 1)
        divisor = tl.full([], 1.0, tl.float64)
    return centered, unit, divisor


@triton.jit(do_not_specialize=["sign_key", "first", "count"])
def decode_narrow_kernel(
    data, bits_at, widths, coarse, fine, scales, classes, counts, ints, floats, roots, coarse_values, fine_values,
    levels, quantizers, out, sign_key, logs, starts, first, count, WIDE: tl.constexpr, WIDEST: tl.constexpr,
    ROTATE: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """The mean of each block; those of width 0 become 0."""
    lane = tl.arange(0, BLOCK)
    negative = (hash32(sign_key, lane) >> 31) != 0
    begin = tl.program_id(0) * EACH
    for number in range(begin, tl.minimum(begin + EACH, count)):
        block = first + number
        log = tl.full([], LOG, tl.int32)
        inside = lane >= 0
        if TAIL:
            log = tl.load(logs + block)
            inside = lane < (1 << log)
        size = (1 << log).to(tl.int32)
        target = out + tl.load(starts + block) + lane
        cls = tl.load(classes + block).to(tl.int32)
        width = tl.load(widths + block).to(tl.int32)
        row = ints + cls * INTS
        exact = tl.load(row + LANE_BITS).to(tl.int32)
        if (exact == 0) | (width == 0):
            tl.store(target, tl.zeros([BLOCK], tl.float32), mask=inside)
        else:
            at = tl.load(bits_at + block)
            if TAIL:
                index = load_bits(data, at, width, size, BLOCK)
            else:
                index = load_planes(data + (at >> 3), width, BLOCK, WIDEST)
            centered, unit, count_ = sum_of(
                index, block, width, exact, cls, tl.load(counts + block), inside, ints, floats, coarse, fine,
                coarse_values, fine_values, levels, quantizers, WIDE,
            )  # fmt: skip
            divisor = count_ * tl.load(roots + log)
            if TAIL:
                centered = tl.where(inside, centered, 0)
            scale = tl.load(scales + block)
            mean = to_floats(centered, scale, unit, divisor, negative, size, ROTATE, BLOCK, LOG, TAIL)
            tl.store(target, mean, mask=inside)
