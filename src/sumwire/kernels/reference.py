"""The definition of every kernel, in NumPy: slow, short, and the judge of all the others.

A tensor of `size` coordinates is cut into *blocks*: as many of 2**log_block as fit, then the
remainder in falling powers of two, so that nothing is ever padded. Payload bytes, sum lanes and
scales follow block by block. Kernels work on blocks lo..hi, and buffers that belong to a block
range start at block lo.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.scheme import (
    PLANE_GROUP,
    TINY_DROP,
    TINY_LIFT,
    TINY_SCALE,
    Keys,
    LatticeSpec,
    Scheme,
)

AnyArray = NDArray[np.generic]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

NAME = "reference"

_GOLDEN = 0x9E3779B9


# Blocks


def block_sizes(size: int, log_block: int) -> Ints:
    """Sizes of all blocks of a tensor: whole ones, then falling powers of two."""
    whole, rest = divmod(size, 1 << log_block)
    tail = [1 << k for k in reversed(range(log_block)) if rest >> k & 1]
    return np.array([1 << log_block] * whole + tail, dtype=np.int64)


def _groups(sizes: Ints, *labels: Bytes) -> Iterator[tuple[int, tuple[int, ...], Ints]]:
    """Blocks that can be treated as one matrix: (size, labels, their numbers)."""
    if not len(sizes):
        return
    stacked = np.stack([sizes, *[label.astype(np.int64) for label in labels]])
    kinds, member = np.unique(stacked, axis=1, return_inverse=True)
    for kind in range(kinds.shape[1]):
        size, *rest = (int(v) for v in kinds[:, kind])
        yield size, tuple(rest), np.flatnonzero(member.reshape(-1) == kind)


def _rows(starts: Ints, which: Ints, size: int) -> Ints:
    """Positions of the given blocks, one row each."""
    return starts[which][:, None] + np.arange(size)[None, :]


def _starts(lengths: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


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
    turn = hash32(key ^ 0xA5A5A5A5, blocks)
    return (pattern[None, :] + turn[:, None]) & np.uint32(0xFFFF)


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
    starts = _starts(sizes)
    for size, _, which in _groups(sizes):
        at = _rows(starts, which, size)
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
    starts = _starts(sizes)
    for size, _, which in _groups(sizes[lo:hi]):
        values = _float32(x[_rows(starts[lo:], which, size)])
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


def _float32(x: AnyArray) -> Floats:
    """fp16, bf16 (as uint16), fp32 or fp64 as float32."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32)


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


# Bit packing


def planes(width: int) -> list[int]:
    """The powers of two that a width is made of, largest first: 7 -> 4, 2, 1."""
    return [1 << k for k in reversed(range(6)) if width >> k & 1]


def pack_planes(values: NDArray[np.integer], width: int) -> Bytes:
    """Rows of `width`-bit values as bits, least significant first.

    Values are cut into groups of 256 (or the whole row), a group into bit planes of 16, 8, 4, 2, 1
    bits. In a plane of p < 8 bits, byte j holds lanes j, j + c, j + 2c, ... where c = group * p / 8:
    a vector unit packs and unpacks that with shifts alone. 16-bit planes are little-endian.
    """
    rows, size = values.shape
    group = min(size, PLANE_GROUP)
    v = values.astype(np.uint64).reshape(rows * (size // group), group)
    parts = []
    shift = 0
    for p in planes(width):
        plane = v >> np.uint64(shift) & np.uint64((1 << p) - 1)
        bits = plane[:, :, None] >> np.arange(p, dtype=np.uint64) & np.uint64(1)
        if p < 8:
            columns = max(1, group * p // 8)
            bits = bits.reshape(len(v), group // columns, columns, p).transpose(0, 2, 1, 3)
        parts.append(bits.reshape(len(v), group * p).astype(np.uint8))
        shift += p
    return np.concatenate(parts, axis=1).reshape(rows, size * width)


def unpack_planes(bits: Bytes, size: int, width: int) -> Ints:
    """Inverse of `pack_planes`."""
    rows = len(bits)
    group = min(size, PLANE_GROUP)
    b = bits.reshape(rows * (size // group), group * width)
    out = np.zeros((len(b), group), dtype=np.int64)
    shift = done = 0
    for p in planes(width):
        plane = b[:, done : done + group * p]
        if p < 8:
            columns = max(1, group * p // 8)
            plane = plane.reshape(len(b), columns, group // columns, p).transpose(0, 2, 1, 3)
        weights = np.int64(1) << np.arange(shift, shift + p, dtype=np.int64)
        out += plane.reshape(len(b), group, p).astype(np.int64) @ weights
        shift += p
        done += group * p
    return out.reshape(rows, size)


class _BitRows:
    """A byte buffer of blocks, each of width * size bits, least significant bit first."""

    def __init__(self, data: Bytes, widths: Bytes, sizes: Ints) -> None:
        self.data = data
        self.starts = _starts(widths.astype(np.int64) * sizes)
        self.bits = np.unpackbits(data, bitorder="little")

    def get(self, which: Ints, size: int, width: int) -> Ints:
        return unpack_planes(self.bits[_rows(self.starts, which, size * width)], size, width)

    def put(self, which: Ints, values: NDArray[np.integer], width: int) -> None:
        at = _rows(self.starts, which, values.shape[1] * width)
        self.bits[at] = pack_planes(values, width)

    def flush(self) -> None:
        self.data[:] = np.packbits(self.bits, bitorder="little")


def payload_bytes(sizes: Ints, widths: Bytes) -> int:
    """Bytes of the payload of these blocks."""
    return (int((sizes * widths).sum()) + 7) // 8


def lane_bytes(scheme: Scheme, sizes: Ints, classes: Bytes) -> Ints:
    """Bytes of each block's sum lanes in memory."""
    per_lane = np.array([0 if s is None else s.lane_bytes for s in scheme.lattices], dtype=np.int64)
    return per_lane[classes] * sizes


def lane_bits(scheme: Scheme, classes: Bytes) -> Bytes:
    """Width of each block's sum lanes on the wire."""
    per_lane = np.array([0 if s is None else s.lane_bits for s in scheme.lattices], dtype=np.uint8)
    return per_lane[classes]


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
    starts = _starts(sizes)
    out[:] = 0
    rows = _BitRows(out, widths[lo:hi], sizes[lo:hi])
    beyond: list[int] = []
    for size, (cls, width), which in _groups(sizes[lo:hi], classes[lo:hi], widths[lo:hi]):
        blocks = which + lo
        at = _rows(starts, blocks, size)
        values = _float32(x[at])
        if width == 0:
            if residual is not None:
                residual[at] = values
            continue
        spec = scheme.lattices[cls]
        assert spec is not None
        table = scheme.tables[cls, width]
        y, bad = _to_units(scheme, spec, cls, values, scales[blocks], keys)
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
    # Rounding by chance keeps small coordinates alive; the blocks of a round can share its pattern.
    dither = hash32(keys.dither, np.arange(size)) >> np.uint32(32 - spec.dither_bits)
    units = fixed + dither.astype(np.int64) >> spec.dither_bits
    bad = outside.any(axis=1)
    bad |= (units**2).sum(axis=1) > scheme.square_limit(size, cls)
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
    starts = _starts(lane_bytes(scheme, sizes, classes))
    for data, widths in payloads:
        rows = _BitRows(data, widths, sizes)
        for block, (cls, width), which in _groups(sizes, classes, widths):
            if width == 0:
                continue
            spec = scheme.lattices[cls]
            assert spec is not None
            index = rows.get(which, block, width)
            total = _get_lanes(lanes, starts, which, block, spec.lane_bytes)
            total += scheme.tables[cls, width].values[index]
            _put_lanes(lanes, starts, which, total, spec.lane_bytes)


def add_lanes(scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, other: Bytes, lo: int, hi: int) -> None:
    """lanes += other, both the sum lanes of blocks lo..hi."""
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts = _starts(lane_bytes(scheme, sizes, classes))
    for block, (cls,), which in _groups(sizes, classes):
        spec = scheme.lattices[cls]
        if spec is not None:
            total = _get_lanes(lanes, starts, which, block, spec.lane_bytes)
            total += _get_lanes(other, starts, which, block, spec.lane_bytes)
            _put_lanes(lanes, starts, which, total, spec.lane_bytes)


def _get_lanes(lanes: Bytes, starts: Ints, which: Ints, size: int, per_lane: int) -> Ints:
    raw = lanes[_rows(starts, which, size * per_lane)]
    return raw.reshape(len(which), size, per_lane).astype(np.int64) @ (256 ** np.arange(per_lane))


def _put_lanes(lanes: Bytes, starts: Ints, which: Ints, values: Ints, per_lane: int) -> None:
    raw = values[:, :, None] >> (8 * np.arange(per_lane)) & 255
    lanes[_rows(starts, which, values.shape[1] * per_lane)] = raw.reshape(len(which), -1).astype(np.uint8)


def pack_lanes(scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, out: Bytes, lo: int, hi: int) -> None:
    """Sum lanes of blocks lo..hi from memory to their width on the wire."""
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts = _starts(lane_bytes(scheme, sizes, classes))
    out[:] = 0
    rows = _BitRows(out, lane_bits(scheme, classes), sizes)
    for block, (cls,), which in _groups(sizes, classes):
        spec = scheme.lattices[cls]
        if spec is not None:
            rows.put(which, _get_lanes(lanes, starts, which, block, spec.lane_bytes), spec.lane_bits)
    rows.flush()


def unpack_lanes(scheme: Scheme, size: int, classes: Bytes, data: Bytes, lanes: Bytes, lo: int, hi: int) -> None:
    """Inverse of `pack_lanes`."""
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    starts = _starts(lane_bytes(scheme, sizes, classes))
    rows = _BitRows(data, lane_bits(scheme, classes), sizes)
    for block, (cls,), which in _groups(sizes, classes):
        spec = scheme.lattices[cls]
        if spec is not None:
            _put_lanes(lanes, starts, which, rows.get(which, block, spec.lane_bits), spec.lane_bytes)


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
    starts = _starts(sizes)
    lane_starts = _starts(lane_bytes(scheme, sizes[lo:hi], classes[lo:hi]))
    present = (counts[lo:hi] > 0).astype(np.uint8)
    for size, (cls, here), which in _groups(sizes[lo:hi], classes[lo:hi], present):
        blocks = which + lo
        at = _rows(starts, blocks, size)
        spec = scheme.lattices[cls]
        if spec is None or not here:
            out[at] = 0
            continue
        total = _get_lanes(lanes, lane_starts, which, size, spec.lane_bytes)
        count = counts[blocks].astype(np.int64)
        out[at] = _to_floats(scheme, spec, total, count, scales[blocks], sign_key)


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


# Checksum


def _crc32c_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> np.uint32(1) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table


def _apply(operator: NDArray[np.uint32], registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A linear map over GF(2), given by the images of the 32 bits."""
    out = np.zeros_like(registers)
    for bit in range(32):
        out ^= (registers >> np.uint32(bit) & np.uint32(1)) * operator[bit]
    return out


def crc32c(data: Bytes, start: int = 0) -> int:
    """CRC-32C (Castagnoli) of the bytes, continuing from `start`.

    The bytes are cut into columns that advance together; then neighbours are joined: the left
    register passes over as many zeros as the right one has bytes.
    """
    table = _crc32c_table()
    columns = 1 << max(0, len(data).bit_length() - 8)
    length = len(data) // columns
    head = data[: columns * length].reshape(columns, length)
    register = np.zeros(columns, dtype=np.uint32)
    register[0] = ~np.uint32(start)
    unit = np.uint32(1) << np.arange(32, dtype=np.uint32)
    over = unit.copy()
    for j in range(length):
        register = table[(register ^ head[:, j]) & np.uint32(255)] ^ register >> np.uint32(8)
        over = table[over & np.uint32(255)] ^ over >> np.uint32(8)
    while len(register) > 1:
        register = _apply(over, register[::2]) ^ register[1::2]
        over = _apply(over, over)
    last = int(register[0])
    for byte in data[columns * length :].tolist():
        last = int(table[(last ^ byte) & 255]) ^ last >> 8
    return last ^ 0xFFFFFFFF
