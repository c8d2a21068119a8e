"""Who adds which coordinates of a sparse tensor: blocks are dealt out like cards, so that hot rows have many owners."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels import sparse as kernels
from sumwire.kernels.hashing import hash64

SMALLEST_BLOCK = 64
"""Coordinates: a word of a bitmap."""

LARGEST_BLOCK = 4096
"""A page or more, so that memory is read in runs; larger ones would gain nothing and load owners less evenly."""

_BLOCKS_EACH = 64
"""So many blocks a shard at least, where the tensor is large enough: fewer would load owners unevenly."""


@dataclass(frozen=True, eq=False)
class Shards:
    """A tensor's coordinates in `len(starts)` shards; shard-local coordinates are its blocks laid end to end."""

    size: int
    block: int
    starts: tuple[NDArray[np.int64], ...]
    """First coordinates of each shard's blocks, ascending."""
    bits: tuple[int, ...]
    """Coordinates of each shard."""

    def words(self, shard: int) -> int:
        """Words of the shard's bitmap."""
        return -(-self.bits[shard] // 64)


@lru_cache(maxsize=256)
def deal(size: int, shards: int, block: int | None = None, seed: int = 0) -> Shards:
    """The blocks of a tensor, dealt out as evenly as whole blocks allow.

    >>> dealt = deal(1000, 3, block=64)
    >>> [len(starts) for starts in dealt.starts], sum(dealt.bits)
    ([5, 6, 5], 1000)
    """
    block = block or default_block(size, shards)
    # Of every run of `shards` blocks each shard gets one, in an order by hash: wherever entries crowd, or in
    # whatever step they repeat, every owner has its share.
    first = np.arange(0, -(-size // block), shards)[:, None]
    numbers = first + np.arange(shards)
    mine = first + np.argsort(hash64(seed, numbers), axis=1, kind="stable")
    starts = tuple(column[column < size] for column in (mine * block).T.copy())
    for each in starts:
        each.flags.writeable = False
    return Shards(size, block, starts, tuple(kernels.bits(each, block, size) for each in starts))


def default_block(size: int, shards: int) -> int:
    """
    >>> default_block(100, 4), default_block(10**8, 4)
    (64, 4096)
    """
    wanted = max(1, size // (_BLOCKS_EACH * shards))
    return int(min(LARGEST_BLOCK, max(SMALLEST_BLOCK, 1 << (wanted.bit_length() - 1))))
