"""The kernels of the mean-estimation schemes, on the best backend.

levels_reference.py defines every one of them. They work on one tile; `tiles` cuts a vector into tiles that
stay in the cache, and `run` spreads those over threads.

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
from functools import lru_cache, partial
from types import ModuleType

import numpy as np

from sumwire import kernels
from sumwire.kernels import threads
from sumwire.kernels.lattice.layout import Bytes
from sumwire.kernels.lattice.reference import Floats
from sumwire.kernels.scalar import reference as levels_reference
from sumwire.kernels.scalar.reference import Doubles, Indices, Words

LOG_TILE = 16
"""Coordinates of a tile: its float32 and its indices fit into the L2 cache together."""


@lru_cache(maxsize=1)
def backend() -> ModuleType:
    """The module that does the work: beside the one that `kernels` has chosen."""
    if kernels.backend() is kernels.reference:
        return levels_reference
    from sumwire.kernels.scalar import native as levels_native

    return levels_native


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
        """Its bytes among the packed indices of all; tiles begin with a byte, as blocks of a tile are many."""
        return slice(self.coordinates.start * width // 8, -(-self.coordinates.stop * width // 8))


def tiles(size: int, log_block: int) -> list[Tile]:
    """A vector of `size` coordinates in tiles.

    >>> [tile.size for tile in tiles(150_000, 12)]
    [65536, 65536, 18928]
    """
    step, blocks = 1 << max(LOG_TILE, log_block), len(kernels.block_sizes(size, log_block))
    out = []
    for start in range(0, size, step):
        stop = min(size, start + step)
        end = stop >> log_block if stop < size else blocks
        out.append(Tile(slice(start, stop), slice(start >> log_block, end)))
    return out


def run(work: Callable[[Tile, Floats, Indices], None], size: int, log_block: int) -> None:
    """work(tile, floats, indices) for every tile, on as many threads as the vector is worth.

    The last two are scratch of the tile's size: fresh memory for each tile would cost more than some kernels.
    """
    todo = tiles(size, log_block)
    pieces = min(len(todo), threads.pieces(size))

    def some(k: int) -> int:
        mine = todo[len(todo) * k // pieces : len(todo) * (k + 1) // pieces]
        longest = max(tile.size for tile in mine)
        floats, indices = np.empty(longest, np.float32), np.empty(longest, np.uint16)
        for tile in mine:
            work(tile, floats[: tile.size], indices[: tile.size])
        return 0

    threads.run([partial(some, k) for k in range(pieces)])


def summarize(x: Floats, log_block: int, low: Floats, high: Floats, squares: Doubles) -> None:
    """Range and energy of every block: see `levels_reference.summarize`."""
    backend().summarize(x, log_block, low, high, squares)


def quantize(
    x: Floats,
    log_block: int,
    low: Doubles,
    gain: Doubles,
    levels: int,
    key: int,
    first: int,
    noise: Words | None,
    out: Indices,
) -> None:
    """Stochastic rounding to evenly spaced levels: see `levels_reference.quantize`."""
    backend().quantize(x, log_block, low, gain, levels, key, first, noise, out)


def dequantize(index: Indices, log_block: int, low: Doubles, step: Doubles, out: Floats) -> None:
    """Levels back to floats: see `levels_reference.dequantize`."""
    backend().dequantize(index, log_block, low, step, out)


def nearest(
    x: Floats, log_block: int, gain: Floats, edges: Floats, centres: Floats, out: Indices, dots: Doubles
) -> None:
    """Rounding to the nearest centre: see `levels_reference.nearest`."""
    backend().nearest(x, log_block, gain, edges, centres, out, dots)


def look_up(index: Indices, log_block: int, scale: Floats, centres: Floats, out: Floats) -> None:
    """Centres back to floats: see `levels_reference.look_up`."""
    backend().look_up(index, log_block, scale, centres, out)


def pack(index: Indices, width: int, out: Bytes) -> None:
    """Indices to a stream of bits: see `levels_reference.pack`."""
    backend().pack(index, width, out)


def unpack(data: Bytes, width: int, out: Indices) -> None:
    """And back: see `levels_reference.unpack`."""
    backend().unpack(data, width, out)
