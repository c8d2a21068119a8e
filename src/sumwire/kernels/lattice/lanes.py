"""Sum lanes: their sizes, and the definition of the kernels that add payloads and sums and pack lanes for the network.

classes and all buffers hold blocks lo..hi only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes, Ints
from sumwire.kernels.lattice.blocks import (
    BitRows,
    block_sizes,
    groups,
    rows_of,
    starts_of,
)
from sumwire.kernels.lattice.scheme import Scheme


def lane_bytes(scheme: Scheme, sizes: Ints, classes: Bytes) -> Ints:
    """Bytes of each block's sum lanes in memory."""
    return scheme.lane_bytes[classes] * sizes


def lane_bits(scheme: Scheme, classes: Bytes) -> Bytes:
    """Width of each block's sum lanes on the wire."""
    return scheme.lane_bits[classes]


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

    With `fresh`, whatever the lanes held before is ignored.
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
