"""Where things lie: blocks in a tensor, bits in a payload, lanes in a sum.

A tensor of `size` coordinates is cut into *blocks*: as many of 2**log_block as fit, then the remainder in descending
powers of two, so that nothing is ever padded. Payload bytes, sum lanes and scales follow block by block.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes, Ints
from sumwire.kernels.lattice.scheme import PLANE_GROUP, Scheme


def block_sizes(size: int, log_block: int) -> Ints:
    """Sizes of all blocks of a tensor: whole ones, then descending powers of two."""
    whole, rest = divmod(size, 1 << log_block)
    sizes = np.full(whole + rest.bit_count(), 1 << log_block, np.int64)
    sizes[whole:] = [1 << k for k in reversed(range(log_block)) if rest >> k & 1]
    return sizes


def groups(sizes: Ints, *labels: Bytes) -> Iterator[tuple[int, tuple[int, ...], Ints]]:
    """Blocks that can be treated as one matrix: (size, labels, their numbers)."""
    if not len(sizes):
        return
    stacked = np.stack([sizes, *[label.astype(np.int64) for label in labels]])
    kinds, member = np.unique(stacked, axis=1, return_inverse=True)
    for kind in range(kinds.shape[1]):
        size, *rest = (int(v) for v in kinds[:, kind])
        yield size, tuple(rest), np.flatnonzero(member.reshape(-1) == kind)


def rows_of(starts: Ints, which: Ints, size: int) -> Ints:
    """Positions of the given blocks, one row each."""
    return starts[which][:, None] + np.arange(size)[None, :]


def starts_of(lengths: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def planes(width: int) -> list[int]:
    """The powers of two that add up to a width, largest first: 7 -> 4, 2, 1."""
    return [1 << k for k in reversed(range(6)) if width >> k & 1]


def pack_planes(values: NDArray[np.integer], width: int) -> Bytes:
    """Rows of `width`-bit values as bits, least significant first.

    Values are cut into groups of 256 (or the whole row), a group into bit planes of 16, 8, 4, 2, 1 bits. In a plane
    of p < 8 bits, byte j holds lanes j, j + c, j + 2c, ... where c = group * p / 8: a vector unit packs and unpacks
    that with shifts alone. 16-bit planes are little-endian.
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


class BitRows:
    """A byte buffer of blocks, each of width * size bits, least significant bit first."""

    def __init__(self, data: Bytes, widths: Bytes, sizes: Ints) -> None:
        self.data = data
        self.starts = starts_of(widths.astype(np.int64) * sizes)
        self.bits = np.unpackbits(data, bitorder="little")

    def get(self, which: Ints, size: int, width: int) -> Ints:
        return unpack_planes(self.bits[rows_of(self.starts, which, size * width)], size, width)

    def put(self, which: Ints, values: NDArray[np.integer], width: int) -> None:
        at = rows_of(self.starts, which, values.shape[1] * width)
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


def words(scheme: Scheme, sizes: Ints, classes: Bytes) -> Ints:
    """32-bit words of each block's lanes: see `reference.pack_words`."""
    per_word = np.array([1 if s is None else s.lanes_per_word for s in scheme.lattices], dtype=np.int64)
    used = np.array([s is not None for s in scheme.lattices], dtype=np.int64)
    return used[classes] * -(-sizes // per_word[classes])


def get_lanes(lanes: Bytes, starts: Ints, which: Ints, size: int, per_lane: int) -> Ints:
    raw = lanes[rows_of(starts, which, size * per_lane)]
    return raw.reshape(len(which), size, per_lane).astype(np.int64) @ (256 ** np.arange(per_lane))


def put_lanes(lanes: Bytes, starts: Ints, which: Ints, values: Ints, per_lane: int) -> None:
    raw = values[:, :, None] >> (8 * np.arange(per_lane)) & 255
    lanes[rows_of(starts, which, values.shape[1] * per_lane)] = raw.reshape(len(which), -1).astype(np.uint8)
