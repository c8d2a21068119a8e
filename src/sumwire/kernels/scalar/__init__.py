"""The kernels of the mean-estimation schemes, which quantize coordinate by coordinate.

reference.py defines every one of them. They work on one tile; `tiles` cuts a vector into tiles that stay in the cache,
and `run` spreads those over threads.

>>> index = np.array([1, 2, 3, 0, 3], np.uint16)
>>> data = np.empty(2, np.uint8)
>>> pack(index, 2, data)
>>> back = np.empty_like(index)
>>> unpack(data, 2, back)
>>> back.tolist()
[1, 2, 3, 0, 3]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sumwire.kernels import threads
from sumwire.kernels.arrays import Floats
from sumwire.kernels.backend import dispatch
from sumwire.kernels.lattice import block_sizes
from sumwire.kernels.scalar import reference
from sumwire.kernels.scalar.reference import Indices

LOG_TILE = 16
"""log2 of a tile's coordinates: their float32 and their indices fit into the L2 cache together."""


summarize = dispatch(reference.summarize)
quantize = dispatch(reference.quantize)
dequantize = dispatch(reference.dequantize)
nearest = dispatch(reference.nearest)
look_up = dispatch(reference.look_up)
pack = dispatch(reference.pack)
unpack = dispatch(reference.unpack)


@dataclass(frozen=True)
class Tile:
    """A run of whole blocks (and, at the end, the smaller ones)."""

    coordinates: slice
    blocks: slice

    @property
    def first(self) -> int:
        return int(self.coordinates.start)

    @property
    def size(self) -> int:
        return int(self.coordinates.stop - self.coordinates.start)

    def packed(self, width: int) -> slice:
        """Its bytes among the packed indices of all tiles; it begins at a byte, because its size is a multiple of 8."""
        return slice(self.coordinates.start * width // 8, -(-self.coordinates.stop * width // 8))


def tiles(size: int, log_block: int) -> list[Tile]:
    """A vector of `size` coordinates in tiles.

    >>> [tile.size for tile in tiles(150_000, 12)]
    [65536, 65536, 18928]
    """
    step, blocks = 1 << max(LOG_TILE, log_block), len(block_sizes(size, log_block))
    out = []
    for start in range(0, size, step):
        stop = min(size, start + step)
        end = stop >> log_block if stop < size else blocks
        out.append(Tile(slice(start, stop), slice(start >> log_block, end)))
    return out


def run(work: Callable[[Tile, Floats, Indices], None], size: int, log_block: int) -> None:
    """work(tile, floats, indices) for every tile, on as many threads as pay off for the vector.

    The last two are scratch memory of the tile's size: fresh memory for each tile would cost more than some kernels.
    """
    todo = tiles(size, log_block)
    pieces = max(1, min(len(todo), threads.pieces(size)))

    def some(first: int, last: int) -> None:
        longest = max((tile.size for tile in todo[first:last]), default=0)
        floats, indices = np.empty(longest, np.float32), np.empty(longest, np.uint16)
        for tile in todo[first:last]:
            work(tile, floats[: tile.size], indices[: tile.size])

    threads.run_between([len(todo) * k // pieces for k in range(pieces + 1)], some)
