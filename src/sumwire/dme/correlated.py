"""Levels whose rounding errors cancel between clients (Suresh et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.base import MAX_WORKERS
from sumwire.codec.lattice.codec import Lattice
from sumwire.dme.levels import StochasticLevels, shared_levels
from sumwire.dme.scheme import Draw
from sumwire.kernels.hashing import hash32

_RUN = 1 << 16


@dataclass(frozen=True)
class Correlated(StochasticLevels):
    """As `StochasticLevels`, but clients round with noise that is spread evenly over them.

    For every coordinate a random order of the clients is shared; the one at place p of n draws its noise from
    [p/n, (p+1)/n). Each stays unbiased, and no two are positively correlated, so the bound of `StochasticLevels`
    holds; clients whose vectors agree have their errors cancel. `workers` is n: ranks beyond it form further
    groups, fewer ranks cancel less. Bits: as `StochasticLevels`. Cost: `workers` hashes a coordinate, in NumPy.
    Not addable; `lattice` is, and its stratified rounding does the same for one hash.

    >>> from sumwire.dme import estimate
    >>> xs = [np.linspace(-1, 1, 1000, dtype=np.float32)] * 8
    >>> schemes = Correlated(4, workers=8), StochasticLevels(4)
    >>> errors = [np.square(estimate(scheme, xs) - xs[0]).sum() for scheme in schemes]
    >>> bool(errors[0] < 0.3 * errors[1])
    True
    """

    workers: int = field(default=16, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole("workers", 1, MAX_WORKERS)

    def _noise(self, draw: Draw, size: int) -> NDArray[np.uint32]:
        words = np.empty(size, np.uint32)
        for start in range(0, size, _RUN):  # in bounded memory
            counter = np.arange(start, min(start + _RUN, size))
            words[counter] = self._share(draw, counter)
        return words

    def _share(self, draw: Draw, counter: NDArray[np.int64]) -> NDArray[np.uint64]:
        """A number from this client's part of [0, 1), in units of 2**-32, for each coordinate."""
        group = draw.rank // self.workers * self.workers
        mine = hash32(draw.order(draw.rank), counter)
        place = np.zeros(len(counter), np.uint64)
        for other in range(group, group + self.workers):
            theirs = hash32(draw.order(other), counter)
            place += theirs < mine if other >= draw.rank else theirs <= mine
        within = hash32(draw.noise, counter).astype(np.uint64)
        return ((place << np.uint64(32)) + within) // np.uint64(self.workers)

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """The Lattice codec's own rounding, without rotation.

        >>> Correlated(16).lattice(4).rounding
        'stratified'
        """
        return shared_levels(self.k, workers, {"rotate": False, "rounding": "stratified", "seed": self.seed} | options)
