"""What a body must be under its terms: how long, how padded, how large its lanes, and how many payloads it has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import FrameError
from sumwire.wire.header import Header
from sumwire.wire.limits import FLAG_COUNTS

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int32]
Ints = NDArray[np.int64]


def block_count(size: int, block: int) -> int:
    """Blocks of a tensor: whole ones, and one for each power of two in the rest.

    >>> block_count(64 + 32 + 1, 64)
    3
    """
    return size // block + (size % block).bit_count()


def check(data: Bytes, bits: int, what: str) -> None:
    """Refuse a body that is not as long as its blocks' bits, or has some behind the last of them.

    >>> check(np.zeros(9, np.uint8), 16 * 4 + 1 * 3, "index")
    """
    need = (bits + 7) // 8
    if len(data) != need:
        raise FrameError(f"body length: {len(data)} bytes of {what} bits, the terms imply {need} for these blocks")
    if bits % 8 and data[-1] >> bits % 8:
        raise FrameError(f"padding after the last {what} is not 0: only {bits % 8} bits of the last byte are in use")


def peaks(lanes: Bytes, sizes: Ints, per_block: Ints) -> Ints:
    """The largest lane of each block, 0 where it has none; per_block is the bytes of its lanes.

    >>> peaks(np.array([1, 7, 0, 2], np.uint8), np.array([2, 2, 1]), np.array([2, 0, 2])).tolist()
    [7, 0, 512]
    """
    out = np.zeros(len(sizes), np.int64)
    stops = np.cumsum(per_block)
    starts = stops - per_block
    # Whole blocks, of which there may be millions, begin at multiples of every lane's width.
    whole = int((sizes == sizes.max(initial=0)).sum())
    front = lanes[: int(per_block[:whole].sum())]
    for width in (1, 2, 4):
        which = np.flatnonzero(per_block[:whole] == width * sizes[:whole])
        if len(which):
            run = front.view(f"u{width}")
            edges = np.stack([starts[which], stops[which]], axis=1).reshape(-1) // width
            # Odd runs are what lies between the blocks of this width; the end of all is no edge.
            out[which] = np.maximum.reduceat(run, edges[edges < len(run)])[::2]
    for block in range(whole, len(sizes)):
        if per_block[block]:
            tail = lanes[starts[block] : stops[block]]
            out[block] = tail.view(f"u{per_block[block] // sizes[block]}").max()
    return out


def write_counts(counts: Counts, count: int) -> tuple[int, int, list[Bytes]]:
    """A sum's count and flags, and the front of its body; `count` is what an empty sum claims.

    >>> write_counts(np.array([2, 2], np.int32), 2), write_counts(np.array([2, 0], np.int32), 2)[:2]
    ((2, 0, []), (2, 1))
    """
    if not len(counts):
        return count, 0, []
    most = int(counts.max())
    return (most, 0, []) if counts.min() == most else (most, FLAG_COUNTS, [counts.view(np.uint8)])


def read_counts(header: Header, data: Bytes, headroom: int) -> tuple[Counts, Bytes]:
    """Payloads in each block or shard of a sum, and the rest of its body."""
    n = header.hi - header.lo
    if header.count > headroom:
        raise FrameError(f"count {header.count} is over the headroom of {headroom} payloads")
    if not header.flags & FLAG_COUNTS:
        return np.full(n, header.count, np.int32), data
    words = data[: 4 * n].copy().view(np.uint32)
    if not n or words.max() != header.count:
        raise FrameError(f"count {header.count} is not the largest of the {n} counts in the body")
    if words.min() == header.count:
        raise FrameError(f"flags announces counts, but all are {header.count}: omit them")
    return words.view(np.int32), data[4 * n :]


def check_rank(header: Header, workers: int) -> None:
    """Refuse a payload of a worker that the codec was not built for."""
    if header.rank >= workers:
        raise FrameError(f"rank {header.rank} is not in 0..{workers - 1}: no such worker")


def nbytes(pieces: list[Bytes]) -> int:
    """Bytes of a body in pieces."""
    return sum(piece.nbytes for piece in pieces)
