"""What a compression scheme of somebody else looks like here: tensors of all workers in, one mean and counted bits out.

How bits are counted: every exchange is seen as "to an owner and back". A worker sends its tensor once, which is
`up_bits`, and receives the mean once, which is `down_bits`. A ring all-reduce of n workers moves 2 (n - 1) / n tensors
per worker, here counted as 2; an all-to-all and an all-gather likewise. Where all payloads are gathered by all, a
worker receives those of the n - 1 others, and all of them are counted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.coding import refuse_non_finite
from sumwire.codec.options import MAX_SEED, whole_number
from sumwire.errors import InputError, MismatchError, NonFiniteError, RangeError

Vector: TypeAlias = NDArray[np.float32]
Parts: TypeAlias = tuple[NDArray[Any], ...]
"""The arrays of one message; nothing else travels."""

MAX_WORKERS = (1 << 15) - 1
MAX_SIZE = 1 << 40


@dataclass(frozen=True)
class Outcome:
    """What one round gave, and what it cost."""

    mean: Vector
    """The estimate of the mean with which every worker ends."""
    up_bits: float
    """Bits per value that one worker sends, with scales and indices; the average over workers where they differ."""
    down_bits: float
    """Bits per value that one worker receives."""

    @property
    def bits(self) -> float:
        """Both directions."""
        return self.up_bits + self.down_bits


class Peer(ABC):
    """A published scheme, simulated in one process for all workers.

    Law: `average` depends on nothing but the options, the seed and the tensors so far. Values are decoded from the
    arrays whose bits are counted. A mean that is not finite is never returned.
    Cost: that of NumPy, a few passes over each worker's tensor.

    Parameters
    ----------
    workers : int
        How many tensors a round averages.
    size : int
        Values in a tensor.
    seed : int
        Of all random numbers.

    Examples
    --------
    >>> from sumwire.lab.peers import PEERS
    >>> peer = PEERS["bf16"](2, 3)
    >>> outcome = peer.average([np.array([1, 2, 3], np.float32), np.array([3, 2, 1], np.float32)])
    >>> outcome.mean.tolist(), outcome.bits
    ([2.0, 2.0, 2.0], 32.0)
    """

    name: str
    paper: ClassVar[str]
    """Citation, one line."""
    unbiased: bool = False
    """Whether the expected mean is the mean, for any tensors, in the first round."""
    addable: ClassVar[bool] = False
    """Whether somebody in the middle can add compressed tensors without decompressing them."""

    def __init__(self, workers: int, size: int, *, seed: int = 0) -> None:
        self.workers = whole_number("workers", workers, 1, MAX_WORKERS)
        self.size = whole_number("size", size, 0, MAX_SIZE)
        self.seed = whole_number("seed", seed, 0, MAX_SEED)
        self.rng = np.random.default_rng(self.seed)
        self._own = self.rng

    def average(self, tensors: Sequence[Vector]) -> Outcome:
        """One round. Residuals and the like are kept for the next one.

        Raises
        ------
        MismatchError
            Not one tensor per worker, or one of another shape.
        InputError
            A tensor is not a float32 array.
        NonFiniteError
            A tensor holds NaN or Inf.
        RangeError
            Values are too large for this scheme: its mean, or a residual, would not be finite.
        """
        self._check(tensors)
        if not self.size:
            return Outcome(np.empty(0, np.float32), 0.0, 0.0)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            outcome = self._average(tensors)
            if not np.isfinite(outcome.mean).all():
                raise RangeError(f"{self.name} cannot represent the mean of these tensors: scale them down")
        return outcome

    def draw_as(self, rank: int) -> None:
        """Be a single worker's, in a process of its own: draw numbers that no other rank draws.

        What all workers draw together still comes from `rng`, which is alike at every rank.
        """
        self._own = np.random.default_rng([self.seed, rank])

    def held_back(self) -> Vector:
        """What residuals hold, as a share of the mean: zeros without error feedback.

        Law of exact feedback: the sum of all means so far plus this is the sum of the exact means.
        """
        return np.zeros(self.size, np.float32)

    @abstractmethod
    def _average(self, tensors: Sequence[Vector]) -> Outcome: ...

    def _check(self, tensors: Sequence[Vector]) -> None:
        if len(tensors) != self.workers:
            raise MismatchError(f"got {len(tensors)} tensors for {self.workers} workers: pass one per worker")
        for rank, x in enumerate(tensors):
            if not isinstance(x, np.ndarray) or x.dtype != np.float32:
                kind = getattr(x, "dtype", type(x).__name__)
                raise InputError(f"the tensor of worker {rank} is {kind}, not a float32 array: convert it first")
            if x.shape != (self.size,):
                raise MismatchError(
                    f"the tensor of worker {rank} has shape {x.shape}, not ({self.size},): flatten it, or build the "
                    "peer with its size"
                )
            if not np.isfinite(x).all():
                try:
                    refuse_non_finite(x)
                except NonFiniteError as error:
                    error.add_note(f"in the tensor of worker {rank}")
                    raise

    def uniform(self, size: int) -> Vector:
        """Fresh numbers in [0, 1)."""
        return self._own.random(size, dtype=np.float32)

    def _per_value(self, bits: float) -> float:
        return bits / self.size


def bits_of(parts: Parts) -> int:
    """Bits of a message as it travels.

    >>> bits_of((np.zeros(3, np.uint8), np.zeros(1, np.float32)))
    56
    """
    return 8 * sum(part.nbytes for part in parts)


def mean_of(tensors: Iterable[Vector]) -> Vector:
    """The mean, added in float64 and rounded once, so that it fits float32 whenever the tensors do.

    >>> mean_of([np.array([3e38], np.float32)] * 2).tolist() == [float(np.float32(3e38))]
    True
    """
    total: NDArray[np.float64] | None = None
    count = 0
    for x in tensors:
        total = x.astype(np.float64) if total is None else np.add(total, x, out=total)
        count += 1
    assert total is not None, "a mean of no tensors"
    return (total / count).astype(np.float32)


def near_square(size: int) -> tuple[int, int]:
    """Rows and columns of the squarest matrix that holds `size` values.

    >>> near_square(10), near_square(0)
    ((4, 3), (1, 1))
    """
    columns = max(1, math.isqrt(size))
    return max(1, -(-size // columns)), columns
