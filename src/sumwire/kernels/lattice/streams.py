"""Definition of the kernels that put a Lattice's blocks in the order of streams, and lanes back into that of blocks."""

from __future__ import annotations

import numpy as np

from sumwire.kernels.arrays import Bytes, Ints
from sumwire.kernels.lattice.scheme import PLANE_GROUP


def gather_blocks(data: Bytes, starts: Ints, nbytes: int, out: Bytes) -> None:
    """Blocks of `nbytes` bytes that begin at `starts`, one after another."""
    out.reshape(-1, nbytes)[:] = data[starts[:, None] + np.arange(nbytes)]


def packing(index_bits: int, lane_bits: int) -> tuple[int, int]:
    """How lanes fill words of 64 bits: bytes of indices that make a word, and words that a byte makes.

    One of the two is 1, and the first at most 8. A word has the lanes of whole bytes, the first in its lowest bits.

    >>> packing(4, 6)    # a byte gives two lanes, of which a word holds ten
    (5, 1)
    >>> packing(1, 16)
    (1, 2)
    """
    lanes, words = 8 // index_bits, 1
    while lanes // words * lane_bits > 64:
        words *= 2
    return min(max(64 // (lanes * lane_bits), 1), 8), words


def lanes_per_word(index_bits: int, lane_bits: int) -> int:
    """Lanes of a word of 64 bits; see `packing`."""
    each, words = packing(index_bits, lane_bits)
    return 8 // index_bits * each // words


def spread_lanes(data: Bytes, block: int, width: int, bits: int, lane: int, starts: Ints, out: Bytes) -> None:
    """Lanes of `bits` bits, in the order that indices of `width` bits have in bytes, into that of coordinates.

    They come packed, and become `lane` bytes each; block k, of `block` lanes, goes to out[starts[k]:]. See
    `blocks.pack_planes` for the order in bytes.
    """
    shifts = np.arange(lanes_per_word(width, bits), dtype=np.uint64) * np.uint64(bits)
    unpacked = data.view("<u8")[:, None] >> shifts & np.uint64((1 << bits) - 1)
    lanes = unpacked.reshape(-1)[: len(starts) * block].astype(f"<u{lane}").view(np.uint8)
    group = min(block, PLANE_GROUP)
    rows = lanes.reshape(-1, block // group, group * width // 8, 8 // width, lane)
    ordered = rows.transpose(0, 1, 3, 2, 4).reshape(len(starts), block * lane)
    out[starts[:, None] + np.arange(block * lane)] = ordered
