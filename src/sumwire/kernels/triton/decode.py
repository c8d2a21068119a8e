"""Lanes to the mean: one read of the lanes, packed or not, one write of the tensor."""

from __future__ import annotations

import triton
import triton.language as tl

from sumwire.kernels.triton.floats import unlift
from sumwire.kernels.triton.planes import load_bits, load_bytes, load_planes
from sumwire.kernels.triton.random import hash32
from sumwire.kernels.triton.rotation import rotate
from sumwire.kernels.triton.scheme import DECODE_GAIN, FLOATS, GRANULARITY, INTS, LANE_BITS, LANE_BYTES


@triton.jit
def to_floats(
    centered, scale, unit, divisor, negative, size, ROTATE: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
    TAIL: tl.constexpr,
):  # fmt: skip
    """An exact integer transform, rounded to float32 and scaled once by scale * unit / divisor."""
    whole = centered
    if ROTATE:
        whole = rotate(centered, size, BLOCK, LOG, TAIL)
    return to_mean(whole, gain_of(scale, unit, divisor), scale, negative)


@triton.jit
def gain_of(scale, unit, divisor):
    """What a transformed sum is multiplied by. Never 0."""
    wide, _, _ = unlift(scale)
    return (wide * unit / divisor).to(tl.float32)


@triton.jit
def to_mean(whole, gain, scale, negative):
    """A transformed sum as float32."""
    _, _, drop = unlift(scale)
    mean = (whole.to(tl.float32) * gain) * drop
    return mean * tl.where(negative, -1.0, 1.0)


@triton.jit
def around_zero(total, payloads, granularity, WIDE: tl.constexpr):
    """Sum lanes without what a mean of 0 would add."""
    if WIDE:
        centered = 2 * total.to(tl.uint32, bitcast=True).to(tl.int64) - payloads * granularity
    else:
        centered = 2 * total - (payloads * granularity).to(tl.int32)
    return centered


@triton.jit(do_not_specialize=["sign_key", "first", "count"])
def decode_kernel(
    data, at, scales, classes, counts, ints, floats, roots, out, sign_key, logs, starts, first, count,
    PACKED: tl.constexpr, WIDE: tl.constexpr, WIDEST: tl.constexpr, ROTATE: tl.constexpr,
    BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """`at` is where each block's lanes begin: in bytes, or in bits if they are PACKED.

    WIDE: transformed sums may exceed int32.
    """
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
        payloads = tl.load(counts + block).to(tl.int64)
        row = ints + cls * INTS
        granularity = tl.load(row + GRANULARITY)
        if (granularity == 0) | (payloads <= 0):
            tl.store(target, tl.zeros([BLOCK], tl.float32), mask=inside)
        else:
            here = tl.load(at + block)
            if PACKED:
                width = tl.load(row + LANE_BITS).to(tl.int32)
                if TAIL:
                    total = load_bits(data, here, width, size, BLOCK)
                else:
                    total = load_planes(data + (here >> 3), width, BLOCK, WIDEST)
            else:
                each = tl.load(row + LANE_BYTES).to(tl.int32)
                total = load_bytes(data + here + lane * each, each, inside)
            centered = around_zero(total, payloads, granularity, WIDE)
            if TAIL:
                centered = tl.where(inside, centered, 0)
            unit = tl.load(floats + cls * FLOATS + DECODE_GAIN)
            divisor = payloads.to(tl.float64) * tl.load(roots + log)
            scale = tl.load(scales + block)
            mean = to_floats(centered, scale, unit, divisor, negative, size, ROTATE, BLOCK, LOG, TAIL)
            tl.store(target, mean, mask=inside)
