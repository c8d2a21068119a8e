"""Who adds which coordinates of a sparse tensor: neighboring blocks go to different shards, which spreads hot rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import ByteCache
from sumwire.kernels.hashing import hash64

MAX_SHARDS = 1 << 16
"""One for each of the most workers, which a process group may need."""

_MANY_SHARDS = 64
"""The default for many workers."""

SMALLEST_BLOCK = 64
"""Coordinates: a word of a bitmap."""

LARGEST_BLOCK = 4096
"""A page or more, so that memory is read in runs; larger ones would gain nothing and load owners less evenly."""

_BLOCKS_EACH = 64
"""Blocks per shard at least, where the tensor is large enough: fewer would load owners unevenly."""

_CACHED = 1 << 27
"""Bytes of block starts that are kept: enough for the largest tensor that a frame can name, in blocks of 4096."""


@dataclass(frozen=True, eq=False)
class Shards:
    """A tensor's coordinates in `count` shards; shard-local coordinates are its blocks laid end to end.

    Block starts are computed on demand, since only workers need them. An aggregator asks for `bits` alone, which cost
    time by the number of shards, not by the size that a frame claims.
    """

    size: int
    block: int
    count: int
    seed: int

    @cached_property
    def bits(self) -> tuple[int, ...]:
        """Coordinates of each shard."""
        runs, rest = divmod(self._blocks, self.count)
        here = np.full(self.count, runs * self.block, np.int64)
        if rest:  # the last run is not full: only its first blocks exist, and the last of them may be shorter
            order = self._order(runs, 1)[0]
            here += np.where(order < rest, self.block, 0)
        else:
            order, rest = self._order(runs - 1, 1)[0] if runs else np.empty(0, np.int64), self.count
        here[order == rest - 1] -= self._blocks * self.block - self.size
        return tuple(here.tolist())

    @cached_property
    def starts(self) -> tuple[NDArray[np.int64], ...]:
        """First coordinates of each shard's blocks, ascending."""
        runs = -(-self._blocks // self.count)
        mine = self._order(0, runs) + self.count * np.arange(runs)[:, None]
        starts = tuple(column[column < self.size] for column in (mine * self.block).T.copy())
        for each in starts:
            each.flags.writeable = False
        return starts

    def words(self, shard: int) -> int:
        """Words of the shard's bitmap."""
        return -(-self.bits[shard] // 64)

    @property
    def nbytes(self) -> int:
        """Memory that this may take once everything is computed."""
        return 8 * self._blocks + 64 * self.count

    @property
    def _blocks(self) -> int:
        return -(-self.size // self.block)

    def _order(self, first: int, runs: int) -> NDArray[np.int64]:
        """For each run of `count` blocks, which of its blocks each shard gets.

        Every shard gets one of every run, in hashed order: wherever entries cluster, and at whatever stride they
        repeat, every owner has its share.
        """
        numbers = np.arange(first * self.count, (first + runs) * self.count).reshape(runs, self.count)
        return np.argsort(hash64(self.seed, numbers), axis=1, kind="stable")


def _deal(size: int, shards: int, block: int | None = None, seed: int = 0) -> Shards:
    """The blocks of a tensor, assigned to shards as evenly as whole blocks allow.

    >>> dealt = deal(1000, 3, block=64)
    >>> [len(starts) for starts in dealt.starts], sum(dealt.bits)
    ([5, 6, 5], 1000)
    """
    return Shards(size, block or default_block(size, shards), shards, seed)


deal = ByteCache(_deal, _CACHED, lambda shards: shards.nbytes)


def default_shards(workers: int) -> int:
    """One per worker, as long as they are few: every payload has a segment for every shard, empty or not.

    >>> default_shards(4), default_shards(10_000)
    (4, 64)
    """
    return min(workers, _MANY_SHARDS)


def default_block(size: int, shards: int) -> int:
    """
    >>> default_block(100, 4), default_block(10**8, 4)
    (64, 4096)
    """
    wanted = max(1, size // (_BLOCKS_EACH * shards))
    return int(min(LARGEST_BLOCK, max(SMALLEST_BLOCK, 1 << (wanted.bit_length() - 1))))
