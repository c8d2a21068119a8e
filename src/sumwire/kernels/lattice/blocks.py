"""A tensor's blocks: where they lie, how their bits are packed, and their randomized Walsh-Hadamard transform.

A tensor of `size` coordinates is cut into *blocks*: as many of 2**log_block as fit, then the remainder in descending
powers of two, so that nothing is ever padded. Payload bytes, sum lanes and scales follow block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes, Floats, Ints
from sumwire.kernels.hashing import hash32
from sumwire.kernels.lattice.scheme import PLANE_GROUP


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
    """Where each of these lengths begins, one after another; and where the last one ends."""
    starts = np.empty(len(lengths) + 1, np.int64)
    starts[0] = 0
    lengths.cumsum(out=starts[1:])
    return starts


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


def signs(key: int, size: int) -> Ints:
    """+1 or -1 for each coordinate of a block; every block of a round shares them."""
    return 1 - 2 * (hash32(key, np.arange(size)) >> np.uint32(31)).astype(np.int64)


def noise_words(key: int, size: int, blocks: Ints) -> NDArray[np.uint32]:
    """16 random bits per coordinate: a pattern within the block, rotated by an angle per block.

    Each word is uniform over rounds; sharing the pattern makes drawing it one addition per coordinate.
    """
    pattern = hash32(key, np.arange(size))
    return (pattern[None, :] + block_words(key, blocks)[:, None]) & np.uint32(0xFFFF)


def block_words(key: int, blocks: Ints) -> NDArray[np.uint32]:
    """One random word per block."""
    return hash32(key ^ 0xA5A5A5A5, blocks)


def fwht(x: NDArray[Any]) -> NDArray[Any]:
    """Unnormalized Walsh-Hadamard transform of the last axis, whose length is a power of two.

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
    """Seeded randomized Hadamard transform of each block in float32: orthonormal up to rounding. out may be x."""
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
