"""narrow.py for blocks that no program holds: sums of a block are added up part by part. Nothing is rotated here."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sumwire.kernels.triton.narrow import centered_lanes, coarse_of, fine_of, lengths_of, quantize, rms_of
from sumwire.kernels.triton.parts import PART, Parts
from sumwire.kernels.triton.planes import load_bytes, store_planes
from sumwire.kernels.triton.scheme import DECODE_GAIN, FLOATS, GRANULARITY, INTS, LANE_BITS, LANE_BYTES, DeviceScheme


@triton.jit
def squares_kernel(lanes, lanes_at, classes, counts, ints, squares, owners, logs, starts):
    """The sum of squares of each block's centered lanes."""
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(owners + part)
    cls = tl.load(classes + block).to(tl.int32)
    payloads = tl.load(counts + block)
    each = tl.load(ints + cls * INTS + LANE_BYTES)
    if (each > 0) & (payloads > 0):
        lane = tl.arange(0, PART)
        at = tl.load(lanes_at + block) + (part * PART - (tl.load(starts + block) - tl.load(starts))) * each
        centered, _, _ = centered_lanes(lanes, at, cls, payloads, lane, lane >= 0, ints)
        tl.atomic_add(squares + block, tl.sum(centered * centered, axis=0))


@triton.jit
def coarse_large_kernel(squares, classes, counts, ints, floats, above, coarse, logs, starts):
    """`coarse_kernel`, given the sums of squares."""
    block = tl.program_id(0)
    cls = tl.load(classes + block).to(tl.int32)
    payloads = tl.load(counts + block)
    found = tl.zeros([], tl.int32)
    if (tl.load(ints + cls * INTS + LANE_BYTES) > 0) & (payloads > 0):
        total = tl.load(squares + block)
        _, shift = lengths_of(payloads.to(tl.int64) * tl.load(ints + cls * INTS + GRANULARITY))
        unit = tl.load(floats + cls * FLOATS + DECODE_GAIN) / payloads.to(tl.float64)
        found = coarse_of(total, rms_of(total, 1 << tl.load(logs + block)), shift, unit, above)
    tl.store(coarse + block, found.to(tl.uint8))


@triton.jit
def narrow_large_kernel(
    lanes, lanes_at, classes, counts, widths, bits_at, ints, squares, magnitudes, levels, quantizers, lines,
    out, products, owners, logs, starts, WIDEST: tl.constexpr,
):  # fmt: skip
    """Indices of the given widths, packed; and the sums of products from which `fine` follows."""
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(owners + part)
    cls = tl.load(classes + block).to(tl.int32)
    width = tl.load(widths + block).to(tl.int32)
    row = ints + cls * INTS
    exact = tl.load(row + LANE_BITS).to(tl.int32)
    if (exact > 0) & (width > 0):
        lane = tl.arange(0, PART)
        begin = part * PART - (tl.load(starts + block) - tl.load(starts))
        each = tl.load(row + LANE_BYTES).to(tl.int32)
        at = tl.load(lanes_at + block) + begin * each
        if width < exact:
            payloads = tl.load(counts + block)
            centered, length, _ = centered_lanes(lanes, at, cls, payloads, lane, lane >= 0, ints)
            rms = rms_of(tl.load(squares + block), 1 << tl.load(logs + block))
            index, weighted = quantize(
                centered.to(tl.int32), begin.to(tl.int32) + lane, length, rms, width, magnitudes, levels, quantizers,
                lines,
            )  # fmt: skip
            tl.atomic_add(products + block, tl.sum(weighted, axis=0))
        else:
            index = load_bytes(lanes + at + lane * each, each, lane >= 0)
        store_planes(out + ((tl.load(bits_at + block) + begin * width) >> 3), index, width, PART, WIDEST)


@triton.jit
def fine_large_kernel(
    squares, products, classes, counts, widths, ints, floats, coarse, coarse_values, quantizers, fine, logs, starts
):  # fmt: skip
    """`fine` of each block that does not keep its lanes."""
    block = tl.program_id(0)
    cls = tl.load(classes + block).to(tl.int32)
    width = tl.load(widths + block).to(tl.int32)
    if (width > 0) & (width < tl.load(ints + cls * INTS + LANE_BITS)):
        payloads = tl.load(counts + block)
        _, shift = lengths_of(payloads.to(tl.int64) * tl.load(ints + cls * INTS + GRANULARITY))
        unit = payloads.to(tl.float64) / tl.load(floats + cls * FLOATS + DECODE_GAIN)
        rough = tl.load(coarse_values + tl.load(coarse + block).to(tl.int32)).to(tl.float64)
        squares_, product = tl.load(squares + block), tl.load(products + block)
        found = fine_of(squares_, product, shift, rough * unit, tl.load(quantizers + width * 2 + 1))
        tl.store(fine + block, found.to(tl.uint8))


def coarse(
    on: DeviceScheme, parts: Parts, shared: tuple[torch.Tensor, ...], above: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """`coarse` of the large blocks of `sums.narrow`, into `out`; their sums of squares, which `narrow` needs.

    `shared` has lanes, lanes_at, classes and counts.
    """
    squares = parts.per_block(torch.int64)
    parts.within(squares_kernel, *shared, on.ints, squares)
    parts.each(coarse_large_kernel, squares, *shared[2:], on.ints, on.floats, above, out)
    return squares


def narrow(
    on: DeviceScheme,
    parts: Parts,
    shared: tuple[torch.Tensor, ...],
    squares: torch.Tensor,
    widths: torch.Tensor,
    bits_at: torch.Tensor,
    coarse: torch.Tensor,
    tables: dict[str, torch.Tensor],
    fine: torch.Tensor,
    data: torch.Tensor,
    widest: int,
) -> None:
    """Indices and `fine` of the large blocks of `sums.narrow`."""
    products = parts.per_block(torch.int64)
    parts.within(
        narrow_large_kernel,
        *shared, widths, bits_at, on.ints, squares, tables["magnitudes"], tables["levels"], tables["numbers"],
        tables["lines"], data, products, WIDEST=widest,
    )  # fmt: skip
    parts.each(
        fine_large_kernel,
        squares, products, *shared[2:], widths, on.ints, on.floats, coarse, tables["coarse"], tables["numbers"], fine,
    )  # fmt: skip
