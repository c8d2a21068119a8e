"""What all exchanges of a rank have in common: its tensor in, everyone's mean out."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from sumwire.errors import MismatchError
from sumwire.lab.peers.base import Vector
from sumwire.lab.wired.wire import Wire


class RankExchange(ABC):
    """One rank's side of a scheme.

    Law: all ranks end with the same bits, which are those of `Peer.average` wherever random numbers are alike. If a
    value of any rank is not finite, or the mean would not be, all values of the mean are NaN at every rank.
    """

    def __init__(self, size: int, wire: Wire) -> None:
        self.size = size
        self.wire = wire

    def average(self, x: Vector) -> Vector:
        """The mean over the ranks of their float32 tensors. All of them call this together."""
        if x.shape != (self.size,):
            raise MismatchError(f"the tensor has shape {x.shape}, not ({self.size},): build the exchange with its size")
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            mean = self._average(x, bool(np.isfinite(x).all())) if self.size else x
        # The same bytes were decoded everywhere, so that all ranks agree.
        if mean is None or not np.isfinite(mean).all():
            return np.full(self.size, np.nan, np.float32)
        return mean

    @abstractmethod
    def _average(self, x: Vector, finite: bool) -> Vector | None:
        """The mean; None, at all ranks alike, if `finite` is false at any of them."""
