"""Lanes and indices as bits, in the order of `pack_planes` in kernels/lattice/blocks.py.

Whole blocks begin a byte and fill whole bytes: their planes are loaded and stored by bytes. Smaller blocks, behind the
whole ones, may share bytes: they go bit by bit, with atomics into words that begin as zero.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_planes(data, width, BLOCK: tl.constexpr, WIDEST: tl.constexpr):
    """The lanes of a whole block; WIDEST, a power of two, is the widest plane that there may be."""
    value = tl.zeros([BLOCK], tl.int32)
    for log in tl.static_range(6):
        if (1 << log) <= WIDEST:  # noqa: SIM102  (one is decided by the compiler, the other by the kernel)
            if (width >> log) & 1 != 0:
                shift = width >> (log + 1) << (log + 1)
                value |= _load_plane(data, width, shift, BLOCK, min(BLOCK, 256), 1 << log) << shift
    return value


@triton.jit
def _load_plane(data, width, shift, BLOCK: tl.constexpr, GROUP: tl.constexpr, P: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    own = lane % GROUP
    at = data + (lane // GROUP * width + shift) * (GROUP // 8)
    if P < 8:
        COLUMNS: tl.constexpr = GROUP * P // 8
        byte = tl.load(at + own % COLUMNS).to(tl.int32)
        part = (byte >> (own // COLUMNS * P)) & ((1 << P) - 1)
    else:
        part = load_bytes(at + own * (P // 8), P // 8, lane >= 0)
    return part


@triton.jit
def store_planes(data, value, width, BLOCK: tl.constexpr, WIDEST: tl.constexpr):
    """Inverse of `load_planes`."""
    for log in tl.static_range(6):
        if (1 << log) <= WIDEST:  # noqa: SIM102  (one is decided by the compiler, the other by the kernel)
            if (width >> log) & 1 != 0:
                shift = width >> (log + 1) << (log + 1)
                _store_plane(data, value >> shift, width, shift, BLOCK, min(BLOCK, 256), 1 << log)


@triton.jit
def _store_plane(data, part, width, shift, BLOCK: tl.constexpr, GROUP: tl.constexpr, P: tl.constexpr):
    if P < 8:
        COLUMNS: tl.constexpr = GROUP * P // 8
        rows = tl.reshape(part & ((1 << P) - 1), [BLOCK // GROUP, 8 // P, COLUMNS])
        byte = tl.sum(rows << (tl.arange(0, 8 // P) * P)[None, :, None], axis=1)
        at = (tl.arange(0, BLOCK // GROUP)[:, None] * width + shift) * (GROUP // 8) + tl.arange(0, COLUMNS)[None, :]
        tl.store(data + at, byte.to(tl.uint8))
    else:
        lane = tl.arange(0, BLOCK)
        at = (lane // GROUP * width + shift) * (GROUP // 8) + lane % GROUP * (P // 8)
        store_bytes(data + at, part, P // 8, lane >= 0)


@triton.jit
def load_bytes(data, count, mask):
    """Little-endian integers of `count` bytes, wherever they begin."""
    value = tl.load(data, mask=mask).to(tl.int32)
    if count > 1:
        value |= tl.load(data + 1, mask=mask).to(tl.int32) << 8
    if count > 2:
        value |= tl.load(data + 2, mask=mask).to(tl.int32) << 16
        value |= tl.load(data + 3, mask=mask).to(tl.int32) << 24
    return value


@triton.jit
def store_bytes(data, value, count, mask):
    """Inverse of `load_bytes`."""
    tl.store(data, (value & 255).to(tl.uint8), mask=mask)
    if count > 1:
        tl.store(data + 1, ((value >> 8) & 255).to(tl.uint8), mask=mask)
    if count > 2:
        tl.store(data + 2, ((value >> 16) & 255).to(tl.uint8), mask=mask)
        tl.store(data + 3, ((value >> 24) & 255).to(tl.uint8), mask=mask)


@triton.jit
def _bit_at(lane, bit, width, size):
    """Where a bit of a lane lies in its block, of `size` lanes of `width` bits."""
    group = tl.minimum(size, 256)
    own = lane % group
    at = tl.zeros_like(lane)
    for log in tl.static_range(6):
        shift = width >> (log + 1) << (log + 1)
        here = ((width >> log) & 1 != 0) & (bit >= shift) & (bit < shift + (1 << log))
        columns = tl.maximum(group >> (3 - min(log, 3)), 1)
        place = own % columns * ((group << log) // columns) + own // columns * (1 << log)
        at = tl.where(here, group * shift + place + bit - shift, at)
    return lane // group * group * width + at


@triton.jit
def load_bits(data, start, width, size, BLOCK: tl.constexpr):
    """The lanes of a smaller block, which begins at bit `start`."""
    lane = tl.arange(0, BLOCK)
    value = tl.zeros([BLOCK], tl.int32)
    for bit in range(width):
        at = start + _bit_at(lane, bit, width, size)
        byte = tl.load(data + (at >> 3), mask=lane < size, other=0).to(tl.int32)
        value |= ((byte >> (at & 7).to(tl.int32)) & 1) << bit
    return value


@triton.jit
def store_bits(words, value, start, width, size, BLOCK: tl.constexpr):
    """Inverse of `load_bits`, into int32 words, which hold zeros where nothing was stored yet."""
    lane = tl.arange(0, BLOCK)
    for bit in range(width):
        at = start + _bit_at(lane, bit, width, size)
        tl.atomic_or(words + (at >> 5), ((value >> bit) & 1) << (at & 31).to(tl.int32), mask=lane < size)
