"""The definition of the lattice kernels, in NumPy: slow, short, and the judge of the native ones.

Kernels work on blocks lo..hi of a tensor (blocks.py says where they lie), and buffers that belong to a block range
start at block lo. blocks.py and lanes.py hold the rest of the definition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import AnyArray, Bytes, Doubles, Floats, Ints, fold16, to_float32
from sumwire.kernels.hashing import hash32
from sumwire.kernels.lattice.blocks import (
    BitRows,
    block_sizes,
    block_words,
    fwht,
    groups,
    noise_words,
    rotate,
    rows_of,
    signs,
    starts_of,
)
from sumwire.kernels.lattice.correction import correct, corrections, offset
from sumwire.kernels.lattice.lanes import (
    add,
    add_lanes,
    get_lanes,
    lane_bytes,
    pack_lanes,
    pack_words,
    unpack_lanes,
    unpack_words,
)
from sumwire.kernels.lattice.scheme import TINY_DROP, TINY_LIFT, TINY_SCALE, Keys, LatticeSpec, Scheme

__all__ = [
    "add",
    "add_lanes",
    "allocate",
    "decode",
    "decode_packed",
    "encode",
    "measure",
    "pack_lanes",
    "pack_words",
    "rotate",
    "unpack_lanes",
    "unpack_words",
]


# Terms: the scale of each block


def measure(x: AnyArray, scheme: Scheme, out: Floats, lo: int, hi: int) -> None:
    """Scale of each block: its rms rounded up (largest magnitude when nothing is rotated).

    Squares of float32 are exact in float64 and cannot overflow there, so a scale is NaN or Inf exactly when a
    coordinate is, and above 0 exactly when a coordinate is not zero.
    """
    sizes = block_sizes(len(x), scheme.log_block)
    starts = starts_of(sizes)
    for size, _, which in groups(sizes[lo:hi]):
        values = to_float32(x[rows_of(starts[lo:], which, size)])
        if not scheme.rotate:
            out[which] = np.abs(values).max(axis=1)
            continue
        rms = np.sqrt(fold16(values.astype(np.float64) ** 2) / size)
        with np.errstate(over="ignore"):
            scale = rms.astype(np.float32)
        low = scale.astype(np.float64) < rms
        out[which] = np.where(low, np.nextafter(scale, np.float32(np.inf)), scale)


# Widths: bits follow the energy


def allocate(
    scales: Floats,
    size: int,
    log_block: int,
    budget: int,
    energy: int,
    ladder: tuple[int, ...],
    floor: int,
    out: Bytes,
) -> None:
    """Width of each block of a tensor of `size` coordinates so that sum(width * block size) <= budget bits.

    `(energy * log2(scale) + c) / 256` rounded down to a width of the ladder (ascending, ends with the widest), with
    the largest c that keeps the budget; what is left over goes to the first blocks that the next c would widen. log2
    is read off the float's own bits, so everything is integers. Blocks of scale 0 get nothing, others at least
    `floor`.
    """
    sizes = block_sizes(size, log_block)
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

    scales, classes and widths belong to the whole tensor; out holds blocks lo..hi. With `residual` (of the whole
    tensor), x minus the decoded payload is written there; it may be x itself.
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
        units, bad = _to_units(scheme, spec, cls, values, scales[blocks], keys, blocks)
        if bad.any():
            beyond.append(int(blocks[bad][0]))
            continue
        wrapped = np.int16 if spec.rotation_bits == 16 else np.int32
        y = fwht(units).astype(wrapped).astype(np.int64) if scheme.rotate else units
        change = corrections(spec, units, y)
        y = (y + offset(spec, change)[:, None]).astype(wrapped).astype(np.int64)
        position = np.clip(correct(spec, y, change), 0, 2 * spec.half_range)
        noise = (noise_words(keys.noise, size, blocks) + np.uint32(keys.shift)) & np.uint32(0xFFFF)
        index = table.lower[position >> spec.fraction_bits]
        above = position - (table.values[index].astype(np.int64) << spec.fraction_bits)
        gap = table.gap[index].astype(np.int64) << spec.fraction_bits
        index += above + (noise.astype(np.int64) * gap >> 16) >= gap
        rows.put(which, index, width)
        if residual is not None:
            own = table.values[index].astype(np.int64)
            count = np.ones(len(blocks), np.int64)
            residual[at] = values - mean_of_lanes(scheme, spec, own, count, scales[blocks], keys.sign)
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
    """Coordinates in units of the integer rotation, with their signs flipped; and which blocks exceed their terms."""
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
    # Stochastic rounding keeps small coordinates alive. The pattern is shared, and made independent per block.
    words = hash32(keys.dither, np.arange(size))[None, :] ^ block_words(keys.dither, blocks)[:, None]
    dither = words >> np.uint32(32 - spec.dither_bits)
    units = fixed + dither.astype(np.int64) >> spec.dither_bits
    bad = outside.any(axis=1)
    squares = np.square(units.astype(np.float64))  # exact up to 2**53, far beyond any limit
    bad |= (squares.sum(axis=1) if scheme.rotate else squares.max(axis=1)) > scheme.square_limit(size, cls)
    return units * signs(keys.sign, size), bad


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
    """The mean of blocks lo..hi; counts, scales, classes and out belong to the whole tensor.

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
        out[at] = mean_of_lanes(scheme, spec, total, count, scales[blocks], sign_key)


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


def mean_of_lanes(scheme: Scheme, spec: LatticeSpec, total: Ints, count: Ints, scales: Floats, sign_key: int) -> Floats:
    """Mean coordinates of a sum."""
    centered = 2 * total - (count * spec.granularity)[:, None]
    return to_floats(scheme, centered, spec.decode_gain, count, scales, sign_key)


def to_floats(
    scheme: Scheme, centered: Ints, unit: float | Doubles, count: int | Ints, scales: Floats, sign_key: int
) -> Floats:
    """An exact integer transform, rounded to float32, scaled once: by unit / count, and a block's own scale."""
    size = centered.shape[1]
    whole = fwht(centered) if scheme.rotate else centered
    tiny = scales < TINY_SCALE
    scale = (scales * np.where(tiny, TINY_LIFT, np.float32(1))).astype(np.float64)
    gain = (scale * unit / (count * scheme.root(size))).astype(np.float32)
    mean = whole.astype(np.float32) * gain[:, None]
    mean *= np.where(tiny, TINY_DROP, np.float32(1))[:, None]
    mean *= signs(sign_key, size).astype(np.float32)
    return mean
