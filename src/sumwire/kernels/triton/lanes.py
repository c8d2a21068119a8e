"""Sum lanes: add payloads by table, add sums, and pack lanes for the network. Integers only."""

from __future__ import annotations

import triton
import triton.language as tl

from sumwire.kernels.triton.planes import load_bits, load_bytes, load_planes, store_bits, store_bytes, store_planes
from sumwire.kernels.triton.scheme import CLASSES, INTS, LANE_BITS, LANE_BYTES


@triton.jit(do_not_specialize=["blocks", "payloads", "first", "count"])
def add_kernel(
    lanes, lanes_at, classes, pointers, bits_at, widths, ints, values, values_at, blocks, payloads,
    logs, starts, first, count, FRESH: tl.constexpr,
    BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """lanes += table[payload], one block per program, all payloads in one pass over the lanes.

    pointers has the address of each payload; bits_at and widths a row of `blocks` for each.
    """
    lane = tl.arange(0, BLOCK)
    block = first + tl.program_id(0)
    inside = lane >= 0
    size = tl.full([], BLOCK, tl.int32)
    if TAIL:
        size = 1 << tl.load(logs + block)
        inside = lane < size
    cls = tl.load(classes + block).to(tl.int32)
    each = tl.load(ints + cls * INTS + LANE_BYTES).to(tl.int32)
    if each > 0:
        target = lanes + tl.load(lanes_at + block) + lane * each
        total = tl.zeros([BLOCK], tl.int32)
        if not FRESH:
            total = load_bytes(target, each, inside)
        for k in range(payloads):
            width = tl.load(widths + k * blocks + block).to(tl.int32)
            if width > 0:
                data = tl.load(pointers + k).to(tl.pointer_type(tl.uint8))
                at = tl.load(bits_at + k * blocks + block)
                if TAIL:
                    index = load_bits(data, at, width, size, BLOCK)
                else:
                    index = load_planes(data + (at >> 3), width, BLOCK, 8)
                total += tl.load(values + tl.load(values_at + cls * CLASSES + width) + index)
        store_bytes(target, total, each, inside)


@triton.jit(do_not_specialize=["first", "count"])
def add_lanes_kernel(
    lanes, other, lanes_at, classes, ints, logs, starts, first, count,
    BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """lanes += other."""
    lane = tl.arange(0, BLOCK)
    block = first + tl.program_id(0)
    inside = lane >= 0
    if TAIL:
        inside = lane < (1 << tl.load(logs + block))
    each = tl.load(ints + tl.load(classes + block).to(tl.int32) * INTS + LANE_BYTES).to(tl.int32)
    if each > 0:
        at = tl.load(lanes_at + block) + lane * each
        total = load_bytes(lanes + at, each, inside) + load_bytes(other + at, each, inside)
        store_bytes(lanes + at, total, each, inside)


@triton.jit(do_not_specialize=["first", "count"])
def pack_kernel(
    lanes, lanes_at, classes, bits_at, ints, out, words, logs, starts, first, count,
    UNPACK: tl.constexpr, WIDEST: tl.constexpr,
    BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Lanes to their width on the wire, in `out`, or back if UNPACK."""
    lane = tl.arange(0, BLOCK)
    block = first + tl.program_id(0)
    inside = lane >= 0
    size = tl.full([], BLOCK, tl.int32)
    if TAIL:
        size = 1 << tl.load(logs + block)
        inside = lane < size
    row = ints + tl.load(classes + block).to(tl.int32) * INTS
    each = tl.load(row + LANE_BYTES).to(tl.int32)
    if each > 0:
        width = tl.load(row + LANE_BITS).to(tl.int32)
        at = tl.load(bits_at + block)
        target = lanes + tl.load(lanes_at + block) + lane * each
        if UNPACK:
            if TAIL:
                value = load_bits(out, at, width, size, BLOCK)
            else:
                value = load_planes(out + (at >> 3), width, BLOCK, WIDEST)
            store_bytes(target, value, each, inside)
        else:
            value = load_bytes(target, each, inside)
            if TAIL:
                store_bits(words, value, at - tl.load(bits_at + first), width, size, BLOCK)
            else:
                store_planes(out + (at >> 3), value, width, BLOCK, WIDEST)
