"""The definition of every kernel, in NumPy: slow, short, and the judge of all the others.

Kernels work on blocks lo..hi of a tensor (layout.py says where they lie), and buffers that belong to a
block range start at block lo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.checksum import crc32c
from sumwire.kernels.lattice.layout import (
    BitRows,
    Bytes,
    Ints,
    block_sizes,
    get_lanes,
    groups,
    lane_bits,
    lane_bytes,
    put_lanes,
    rows_of,
    starts_of,
    words,
)
from sumwire.kernels.lattice.scheme import TINY_DROP, TINY_LIFT, TINY_SCALE, Keys, LatticeSpec, Scheme

__all__ = [
    "add",
    "add_lanes",
    "allocate",
    "crc32c",
    "decode",
    "encode",
    "measure",
    "pack_lanes",
    "rotate",
    "unpack_lanes",
]

AnyArray = NDArray[np.generic]
Floats = NDArray[np.float32]

NAME = "reference"

_GOLDEN = 0x9E3779B9


# Randomness: a counter-based generator, so that every backend draws the same numbers


def hash32(key: int, counter: NDArray[np.integer]) -> NDArray[np.uint32]:
    """lowbias32 of a Weyl sequence that starts at key."""
    with np.errstate(over="ignore"):
        h = counter.astype(np.uint32) * np.uint32(_GOLDEN) + np.uint32(key)
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x7FEB352D)
        h ^= h >> np.uint32(15)
        h *= np.uint32(0x846CA68B)
        h ^= h >> np.uint32(16)
    return h


def signs(key: int, size: int) -> Ints:
    """+1 or -1 for each coordinate of a block; every block of a round shares them."""
    return 1 - 2 * (hash32(key, np.arange(size)) >> np.uint32(31)).astype(np.int64)


def noise_words(key: int, size: int, blocks: Ints) -> NDArray[np.uint32]:
    """16 random bits per coordinate: a pattern within the block, turned by an angle per block.

    Each word is uniform over rounds; sharing the pattern makes it one addition per coordinate.
    """
    pattern = hash32(key, np.arange(size))
    return (pattern[None, :] + block_words(key, blocks)[:, None]) & np.uint32(0xFFFF)


def block_words(key: int, blocks: Ints) -> NDArray[np.uint32]:
    """One random word per block."""
    return hash32(key ^ 0xA5A5A5A5, blocks)


# Walsh-Hadamard


def fwht(x: NDArray[Any]) -> NDArray[Any]:
    """Unnormalised Walsh-Hadamard transform of the last axis, whose length is a power of two.

    Stages run from distance 1 upwards, so float results are the same bits everywhere; integer
    results do not depend on the order at all.
    """
    size = x.shape[-1]
    y = x.copy()
    h = 1
    while h < size:
        y = y.reshape(*x.shape[:-1], size // (2 * h), 2, h)
        y = np.stack([y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]], axis=-2)
        h *= 2
    return y.reshape(x.shape)


def rotate(x: Floats, log_block: int, key: int, inverse: bool, out: Floats) -> None:
    """Seeded randomised Hadamard of each block in float32: orthonormal up to rounding."""
    sizes = block_sizes(len(x), log_block)
    starts = starts_of(sizes)
    for size, _, which in groups(sizes):
        at = rows_of(starts, which, size)
        sign = signs(key, size).astype(np.float32)
        norm = np.float32(1.0 / np.sqrt(np.float64(size)))
        if inverse:
            out[at] = (fwht(x[at]) * norm) * sign
        else:
            out[at] = fwht(x[at] * sign) * norm


# Terms: the scale of each block


def measure(x: AnyArray, scheme: Scheme, out: Floats, lo: int, hi: int) -> None:
    """Scale of each block: its rms rounded up (largest magnitude when nothing is rotated).

    The sum of squares runs in float64, in 16 interleaved accumulators that are folded pairwise.
    Squares of float32 are exact there and cannot overflow, so a scale is NaN or Inf exactly when
    a coordinate is, and above 0 exactly when a coordinate is not zero.
    """
    sizes = block_sizes(len(x), scheme.log_block)
    starts = starts_of(sizes)
    for size, _, which in groups(sizes[lo:hi]):
        values = to_float32(x[rows_of(starts[lo:], which, size)])
        if not scheme.rotate:
            out[which] = np.abs(values).max(axis=1)
            continue
        squares = np.zeros((len(which), -(-size // 16) * 16))
        squares[:, :size] = values.astype(np.float64) ** 2
        fold = np.zeros((len(which), 16))
        for k in range(0, squares.shape[1], 16):
            fold += squares[:, k : k + 16]
        for half in (8, 4, 2, 1):
            fold = fold[:, :half] + fold[:, half : 2 * half]
        rms = np.sqrt(fold[:, 0] / size)
        with np.errstate(over="ignore"):
            scale = rms.astype(np.float32)
        low = scale.astype(np.float64) < rms
        out[which] = np.where(low, np.nextafter(scale, np.float32(np.inf)), scale)


def to_float32(x: AnyArray) -> Floats:
    """fp16, bf16 (as uint16), fp32 or fp64 as float32."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32, copy=False)


# Widths: bits follow the energy


def allocate(
    scales: Floats, sizes: Ints, budget: int, energy: int, ladder: Sequence[int], floor: int, out: Bytes
) -> None:
    """Width of each block so that sum(width * size) <= budget bits.

    `(energy * log2(scale) + c) / 256` rounded down to a width of the ladder (rising, ends with the
    widest), with the largest c that keeps the budget; what is left over goes to the first blocks
    that the next c would widen. log2 is the float's own bits, so this is all integers. Blocks of
    scale 0 get nothing, others at least `floor`.
    """
    level = (scales.view(np.uint32) >> np.uint32(15)).astype(np.int64) * energy
    live = scales.view(np.uint32) > 0
    steps = np.array(sorted(set(ladder)), dtype=np.int64)

    def at(c: int) -> Ints:
        wish = np.maximum(level + c >> 16, 0)
        width = steps[np.searchsorted(steps, wish, side="right") - 1]
        return np.where(live, np.maximum(width, floor), 0)

    low, high = -int(level.max(initial=0)), (int(steps[-1]) + 1) << 16
    while low < high:  # the largest c that fits
        middle = (low + high + 1) // 2
        if int((at(middle) * sizes).sum()) <= budget:
            low = middle
        else:
            high = middle - 1
    width, wider = at(low), at(low + 1)
    left = budget - int((width * sizes).sum())
    for i in np.flatnonzero(wider > width):
        cost = int((wider[i] - width[i]) * sizes[i])
        if cost <= left:
            width[i] = wider[i]
            left -= cost
    out[:] = width


# Encode


def encode(
    scheme: Scheme,
    x: AnyArray,
    scales: Floats,
    classes: Bytes,
    widths: Bytes,
    keys: Keys,
    out: Bytes,
    residual: Floats | None,
    lo: int,
    hi: int,
) -> int:
    """Rotate, clamp, quantize and pack blocks lo..hi; -1, or the first block that its terms do not cover.

    scales, classes and widths are the whole tensor's; out holds blocks lo..hi. With `residual`
    (the whole tensor's), x minus the decoded payload is written there; it may be x itself.
    """
    sizes = block_sizes(len(x), scheme.log_block)
    starts = starts_of(sizes)
    out[:] = 0
    rows = BitRows(out, widths[lo:hi], sizes[lo:hi])
    beyond: list[int] = []
    for size, (cls, width), which in groups(sizes[lo:hi], classes[lo:hi], widths[lo:hi]):
        blocks = which + lo
        at = rows_of(starts, blocks, size)
        values = to_float32(x[at])
        if width == 0:
            if residual is not None:
                residual[at] = values
            continue
        spec = scheme.lattices[cls]
        assert spec is not None
        table = scheme.tables[cls, width]
        y, bad = _to_units(scheme, spec, cls, values, scales[blocks], keys, blocks)
        if bad.any():
            beyond.append(int(blocks[bad][0]))
            continue
        position = np.clip(y, 0, 2 * spec.half_range)
        noise = (noise_words(keys.noise, size, blocks) + np.uint32(keys.shift)) & np.uint32(0xFFFF)
        index = table.lower[position >> spec.fraction_bits]
        above = position - (table.values[index].astype(np.int64) << spec.fraction_bits)
        gap = table.gap[index].astype(np.int64) << spec.fraction_bits
        index += above + (noise.astype(np.int64) * gap >> 16) >= gap
        rows.put(which, index, width)
        if residual is not None:
            own = table.values[index].astype(np.int64)
            count = np.ones(len(blocks), np.int64)
            residual[at] = values - _to_floats(scheme, spec, own, count, scales[blocks], keys.sign)
    rows.flush()
    return min(beyond, default=-1)


def _to_units(
    scheme: Scheme,
    spec: LatticeSpec,
    cls: int,
    values: Floats,
    scales: Floats,
    keys: Keys,
    blocks: Ints,
) -> tuple[Ints, NDArray[np.bool_]]:
    """Rotated coordinates in units of the integer rotation, counted from the bottom of the range; and
    which blocks exceed their terms."""
    size = values.shape[1]
    tiny = scales < TINY_SCALE
    lift = np.where(tiny, TINY_LIFT, np.float32(1))
    values = values * lift[:, None]
    scale = (scales * lift).astype(np.float64)
    gain = (spec.encode_gain / scheme.root(size) / scale).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(values * gain[:, None])
    outside = ~(np.abs(scaled) < np.float32(2.0**31 - 2.0**17))
    fixed = np.where(outside, np.float32(0), scaled).astype(np.int64)
    # Rounding by chance keeps small coordinates alive. A pattern again, made independent by block.
    words = hash32(keys.dither, np.arange(size))[None, :] ^ block_words(keys.dither, blocks)[:, None]
    dither = words >> np.uint32(32 - spec.dither_bits)
    units = fixed + dither.astype(np.int64) >> spec.dither_bits
    bad = outside.any(axis=1)
    squares = np.square(units.astype(np.float64))  # exact up to 2**53, far beyond any limit
    bad |= (squares.sum(axis=1) if scheme.rotate else squares.max(axis=1)) > scheme.square_limit(size, cls)
    units *= signs(keys.sign, size)
    if not scheme.rotate:
        return units + spec.half_range, bad
    units[:, 0] += spec.half_range  # which the transform adds to every coordinate
    wrapped = np.int16 if spec.rotation_bits == 16 else np.int32
    return fwht(units).astype(wrapped).astype(np.int64), bad


# Add


def add(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    lanes: Bytes,
    payloads: Sequence[tuple[Bytes, Bytes]],
    fresh: bool,
    lo: int,
    hi: int,
) -> None:
    """lanes += table[payload] for each (data, widths); all hold blocks lo..hi only, classes too.

    With `fresh`, whatever the lanes held before is forgotten.
    """
    if fresh:
        lanes[:] = 0
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts = starts_of(lane_bytes(scheme, sizes, classes))
    for data, widths in payloads:
        rows = BitRows(data, widths, sizes)
        for block, (cls, width), which in groups(sizes, classes, widths):
            if width == 0:
                continue
            spec = scheme.lattices[cls]
            assert spec is not None
            index = rows.get(which, block, width)
            total = get_lanes(lanes, starts, which, block, spec.lane_bytes)
            total += scheme.tables[cls, width].values[index]
            put_lanes(lanes, starts, which, total, spec.lane_bytes)


def add_lanes(scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, other: Bytes, lo: int, hi: int) -> None:
    """lanes += other, both the sum lanes of blocks lo..hi."""
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts = starts_of(lane_bytes(scheme, sizes, classes))
    for block, (cls,), which in groups(sizes, classes):
        spec = scheme.lattices[cls]
        if spec is not None:
            total = get_lanes(lanes, starts, which, block, spec.lane_bytes)
            total += get_lanes(other, starts, which, block, spec.lane_bytes)
            put_lanes(lanes, starts, which, total, spec.lane_bytes)


def pack_lanes(scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, out: Bytes, lo: int, hi: int) -> None:
    """Sum lanes of blocks lo..hi from memory to their width on the wire."""
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts = starts_of(lane_bytes(scheme, sizes, classes))
    out[:] = 0
    rows = BitRows(out, lane_bits(scheme, classes), sizes)
    for block, (cls,), which in groups(sizes, classes):
        spec = scheme.lattices[cls]
        if spec is not None:
            rows.put(which, get_lanes(lanes, starts, which, block, spec.lane_bytes), spec.lane_bits)
    rows.flush()


def unpack_lanes(scheme: Scheme, size: int, classes: Bytes, data: Bytes, lanes: Bytes, lo: int, hi: int) -> None:
    """Inverse of `pack_lanes`."""
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts = starts_of(lane_bytes(scheme, sizes, classes))
    rows = BitRows(data, lane_bits(scheme, classes), sizes)
    for block, (cls,), which in groups(sizes, classes):
        spec = scheme.lattices[cls]
        if spec is not None:
            put_lanes(lanes, starts, which, rows.get(which, block, spec.lane_bits), spec.lane_bytes)


def pack_words(
    scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, out: NDArray[np.int32], lo: int, hi: int
) -> None:
    """One payload's lanes of blocks lo..hi as 32-bit words, which any integer SUM adds lane by lane.

    With k lanes to a word and c words, word i of a block holds lanes i, i + c, i + 2c, ... from its
    least significant bit up, less `word_bias`.
    """
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts, at = starts_of(lane_bytes(scheme, sizes, classes)), starts_of(words(scheme, sizes, classes))
    for block, (cls,), which in groups(sizes, classes):
        spec = scheme.lattices[cls]
        if spec is None:
            continue
        columns = -(-block // spec.lanes_per_word)
        values = get_lanes(lanes, starts, which, block, spec.lane_bytes)
        values = np.pad(values, ((0, 0), (0, columns * spec.lanes_per_word - block)))
        shifts = spec.lane_bits * np.arange(spec.lanes_per_word)
        total = (values.reshape(len(which), -1, columns) << shifts[:, None]).sum(axis=1) - spec.word_bias
        out[rows_of(at, which, columns)] = total.astype(np.uint32).view(np.int32)


def unpack_words(
    scheme: Scheme, size: int, classes: Bytes, data: NDArray[np.int32], count: int, lanes: Bytes, lo: int, hi: int
) -> None:
    """Lanes from the sum of `count` payloads' words."""
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts, at = starts_of(lane_bytes(scheme, sizes, classes)), starts_of(words(scheme, sizes, classes))
    for block, (cls,), which in groups(sizes, classes):
        spec = scheme.lattices[cls]
        if spec is None:
            continue
        columns = -(-block // spec.lanes_per_word)
        raw = data[rows_of(at, which, columns)].astype(np.int64) + count * spec.word_bias
        shifts = spec.lane_bits * np.arange(spec.lanes_per_word)
        values = raw[:, None, :] >> shifts[:, None] & ((1 << spec.lane_bits) - 1)
        put_lanes(lanes, starts, which, values.reshape(len(which), -1)[:, :block], spec.lane_bytes)


# Decode


def decode(
    scheme: Scheme,
    lanes: Bytes,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: Floats,
    lo: int,
    hi: int,
) -> None:
    """The mean of blocks lo..hi; counts, scales, classes and out are the whole tensor's.

    Blocks of width 0 or count 0 become 0.
    """
    sizes = block_sizes(len(out), scheme.log_block)
    starts = starts_of(sizes)
    lane_starts = starts_of(lane_bytes(scheme, sizes[lo:hi], classes[lo:hi]))
    present = (counts[lo:hi] > 0).astype(np.uint8)
    for size, (cls, here), which in groups(sizes[lo:hi], classes[lo:hi], present):
        blocks = which + lo
        at = rows_of(starts, blocks, size)
        spec = scheme.lattices[cls]
        if spec is None or not here:
            out[at] = 0
            continue
        total = get_lanes(lanes, lane_starts, which, size, spec.lane_bytes)
        count = counts[blocks].astype(np.int64)
        out[at] = _to_floats(scheme, spec, total, count, scales[blocks], sign_key)


def decode_packed(
    scheme: Scheme,
    data: Bytes,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: Floats,
    lo: int,
    hi: int,
) -> None:
    """As `decode`, from lanes as `pack_lanes` left them; block lo begins a byte."""
    here = classes[lo:hi]
    lanes = np.empty(int(lane_bytes(scheme, block_sizes(len(out), scheme.log_block)[lo:hi], here).sum()), np.uint8)
    unpack_lanes(scheme, len(out), here, data, lanes, lo, hi)
    decode(scheme, lanes, counts, scales, classes, sign_key, out, lo, hi)


def _to_floats(scheme: Scheme, spec: LatticeSpec, total: Ints, count: Ints, scales: Floats, sign_key: int) -> Floats:
    """Mean coordinates of a sum: an exact integer transform, rounded to float32, scaled once."""
    size = total.shape[1]
    centred = 2 * total - (count * spec.granularity)[:, None]
    whole = fwht(centred) if scheme.rotate else centred
    tiny = scales < TINY_SCALE
    scale = (scales * np.where(tiny, TINY_LIFT, np.float32(1))).astype(np.float64)
    gain = (scale * spec.decode_gain / (count * scheme.root(size))).astype(np.float32)
    mean = whole.astype(np.float32) * gain[:, None]
    mean *= np.where(tiny, TINY_DROP, np.float32(1))[:, None]
    mean *= signs(sign_key, size).astype(np.float32)
    return mean
