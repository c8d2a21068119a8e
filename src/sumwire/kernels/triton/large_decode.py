"""decode.py for blocks that no program holds: part by part from lanes to scratch memory, then across parts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sumwire.kernels.lattice.scheme import Scheme
from sumwire.kernels.triton.decode import around_zero, gain_of, to_mean
from sumwire.kernels.triton.narrow import sum_of
from sumwire.kernels.triton.parts import LOG_PART, LOG_STRIP, PART, STRIP, Parts, lanes_of
from sumwire.kernels.triton.planes import load_bytes, load_planes
from sumwire.kernels.triton.random import hash32
from sumwire.kernels.triton.rotation import rotate
from sumwire.kernels.triton.scheme import (
    DECODE_GAIN,
    FLOATS,
    GRANULARITY,
    INTS,
    LANE_BITS,
    LANE_BYTES,
    DeviceScheme,
    widest_plane,
)


@triton.jit
def center_kernel(
    data, at, scales, classes, counts, ints, floats, roots, scratch, factors, owners, logs, starts,
    PACKED: tl.constexpr, WIDE: tl.constexpr, WIDEST: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """Lanes around 0, rotated within parts; and what each block is multiplied by at the end, 0 if it is empty.

    `at` is where each block's lanes begin: in bytes, or in bits if they are PACKED.
    """
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(owners + part)
    cls = tl.load(classes + block).to(tl.int32)
    payloads = tl.load(counts + block).to(tl.int64)
    row = ints + cls * INTS
    granularity = tl.load(row + GRANULARITY)
    if (granularity > 0) & (payloads > 0):
        lane = tl.arange(0, PART)
        begin = part * PART - (tl.load(starts + block) - tl.load(starts))
        here = tl.load(at + block)
        if PACKED:
            width = tl.load(row + LANE_BITS).to(tl.int32)
            total = load_planes(data + ((here + begin * width) >> 3), width, PART, WIDEST)
        else:
            each = tl.load(row + LANE_BYTES).to(tl.int32)
            total = load_bytes(data + here + begin * each + lane * each, each, lane >= 0)
        centered = around_zero(total, payloads, granularity, WIDE)
        if ROTATE:
            centered = rotate(centered, PART, PART, LOG_PART, False)
        tl.store(scratch + part * PART + lane, centered)
        if begin == 0:
            unit = tl.load(floats + cls * FLOATS + DECODE_GAIN)
            divisor = payloads.to(tl.float64) * tl.load(roots + tl.load(logs + block))
            tl.store(factors + block, gain_of(tl.load(scales + block), unit, divisor))


@triton.jit
def center_narrow_kernel(
    data, bits_at, widths, coarse, fine, scales, classes, counts, ints, floats, roots, coarse_values, fine_values,
    levels, quantizers, scratch, factors, owners, logs, starts,
    WIDE: tl.constexpr, WIDEST: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """As `center_kernel`, from narrow sums."""
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(owners + part)
    cls = tl.load(classes + block).to(tl.int32)
    width = tl.load(widths + block).to(tl.int32)
    exact = tl.load(ints + cls * INTS + LANE_BITS).to(tl.int32)
    if (exact > 0) & (width > 0):
        lane = tl.arange(0, PART)
        begin = part * PART - (tl.load(starts + block) - tl.load(starts))
        index = load_planes(data + ((tl.load(bits_at + block) + begin * width) >> 3), width, PART, WIDEST)
        centered, unit, divisor = sum_of(
            index, block, width, exact, cls, tl.load(counts + block), lane >= 0, ints, floats, coarse, fine,
            coarse_values, fine_values, levels, quantizers, WIDE,
        )  # fmt: skip
        if ROTATE:
            centered = rotate(centered, PART, PART, LOG_PART, False)
        tl.store(scratch + part * PART + lane, centered)
        if begin == 0:
            divisor *= tl.load(roots + tl.load(logs + block))
            tl.store(factors + block, gain_of(tl.load(scales + block), unit, divisor))


@triton.jit(do_not_specialize=["sign_key", "first"])
def mean_kernel(
    scratch, factors, scales, x, out, sign_key, starts, first,
    RESIDUAL: tl.constexpr, ROTATE: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """The rest of the rotation, and floats: the mean, or x less the mean if RESIDUAL.

    `scratch` may be memory of `out`: a coordinate is overwritten by what is computed from it, among others.
    """
    strip = tl.program_id(0) % (BLOCK // STRIP)
    block = first + tl.program_id(0) // (BLOCK // STRIP)
    lane = lanes_of(strip, BLOCK)
    start = tl.load(starts + block)
    factor = tl.load(factors + block)
    mean = tl.zeros([STRIP], tl.float32)
    if factor != 0:
        whole = tl.load(scratch + (start - tl.load(starts)) + lane)
        if ROTATE:
            whole = rotate(whole, STRIP, STRIP, LOG_STRIP, False, LOG_STRIP + LOG_PART - LOG)
        mean = to_mean(whole, factor, tl.load(scales + block), (hash32(sign_key, lane) >> 31) != 0)
    if RESIDUAL:
        mean = tl.load(x + start + lane).to(tl.float32) - mean
    tl.store(out + start + lane, mean)


def decode(
    scheme: Scheme,
    on: DeviceScheme,
    parts: Parts,
    data: torch.Tensor,
    per_block: list[torch.Tensor],
    sign_key: int,
    out: torch.Tensor,
    begin: int,
    *,
    packed: bool,
) -> None:
    """The large blocks of `lattice.decode`, which begin at coordinate `begin`.

    per_block has where their lanes begin, scales, classes and counts.
    """
    scratch, factors = _scratch(on, parts, out, begin), parts.per_block(torch.float32)
    parts.within(
        center_kernel,
        data, *per_block, on.ints, on.floats, on.roots, scratch, factors, PACKED=packed,
        WIDE=scratch.dtype == torch.int64, WIDEST=widest_plane(on.widest_lane), ROTATE=scheme.rotate,
    )  # fmt: skip
    _finish(scheme, parts, scratch, factors, per_block[1], sign_key, out)


def decode_narrow(
    scheme: Scheme,
    on: DeviceScheme,
    parts: Parts,
    arguments: tuple[torch.Tensor, ...],
    scales: torch.Tensor,
    sign_key: int,
    out: torch.Tensor,
    begin: int,
    widest: int,
) -> None:
    """The large blocks of `sums.decode_narrow`, whose kernel has the same first arguments."""
    scratch, factors = _scratch(on, parts, out, begin), parts.per_block(torch.float32)
    wide = scratch.dtype == torch.int64
    parts.within(center_narrow_kernel, *arguments, scratch, factors, WIDE=wide, WIDEST=widest, ROTATE=scheme.rotate)
    _finish(scheme, parts, scratch, factors, scales, sign_key, out)


def _scratch(on: DeviceScheme, parts: Parts, out: torch.Tensor, begin: int) -> torch.Tensor:
    """Memory of `out`, unless transformed sums may exceed int32."""
    if on.widest_lane + parts.largest_log > 30:
        return parts.scratch(wide=True)
    return out[begin : begin + parts.coordinates].view(torch.int32)


def _finish(
    scheme: Scheme,
    parts: Parts,
    scratch: torch.Tensor,
    factors: torch.Tensor,
    scales: torch.Tensor,
    sign_key: int,
    out: torch.Tensor,
) -> None:
    """From parts, which are rotated, to the mean."""
    parts.across(mean_kernel, scratch, factors, scales, out, out, sign_key, RESIDUAL=False, ROTATE=scheme.rotate)
