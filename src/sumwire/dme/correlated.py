"""Levels with rounding errors that cancel between clients (Suresh et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import MAX_WORKERS
from sumwire.codec.lattice.codec import Lattice
from sumwire.dme.levels import StochasticLevels, shared_lattice
from sumwire.dme.streams import StreamKeys
from sumwire.kernels.hashing import hash32

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Correlated(StochasticLevels):
    """As `StochasticLevels`, but with rounding noise that is stratified over clients.

    For every coordinate, clients share a random order; the client at position p of n draws its noise from
    [p/n, (p+1)/n). Law: unbiased; no two clients are positively correlated, so the bound of `StochasticLevels` holds,
    and errors of clients with similar vectors cancel. Bits: as `StochasticLevels`. Not addable; `lattice` is, and its
    stratified rounding does the same with one hash. Cost: `workers` hashes per coordinate, in NumPy.

    Parameters
    ----------
    k : int
        Number of levels, 2 to 65536.
    workers : int
        Number n of clients in a group. Higher ranks form further groups; with fewer clients, less cancels.
    seed : int
        Seed of the order and of the noise.

    Examples
    --------
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
        self._check_integer("workers", 1, MAX_WORKERS)

    def _noise(self, keys: StreamKeys, size: int) -> NDArray[np.uint32]:
        words = np.empty(size, np.uint32)
        for start in range(0, size, _CHUNK):  # to bound memory
            counter = np.arange(start, min(start + _CHUNK, size))
            words[counter] = self._stratum(keys, counter)
        return words

    def _stratum(self, keys: StreamKeys, counter: NDArray[np.int64]) -> NDArray[np.uint64]:
        """For each coordinate, a random number in this client's stratum of [0, 1), in units of 2**-32."""
        group = keys.rank // self.workers * self.workers
        mine = hash32(keys.ordering(keys.rank), counter)
        position = np.zeros(len(counter), np.uint64)
        for other in range(group, group + self.workers):
            theirs = hash32(keys.ordering(other), counter)
            position += theirs < mine if other >= keys.rank else theirs <= mine
        within = hash32(keys.noise, counter).astype(np.uint64)
        return ((position << np.uint64(32)) + within) // np.uint64(self.workers)

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """The same levels on a shared range, with the stratified rounding of `Lattice`.

        See `MeanScheme.lattice`.

        Examples
        --------
        >>> Correlated(16).lattice(4).rounding
        'stratified'
        """
        return shared_lattice(self.k, workers, {"rotate": False, "rounding": "stratified", "seed": self.seed} | options)
