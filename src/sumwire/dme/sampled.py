"""A random subset of clients sends (Suresh et al. 2017, section 5)."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from sumwire.codec.lattice.codec import Lattice
from sumwire.dme.message import Body, check_length
from sumwire.dme.scheme import BodyPart, MeanScheme
from sumwire.dme.vector import StreamKeys, Vector, VectorStats
from sumwire.errors import ConfigError, InputError

MIN_PROBABILITY = 2.0**-20
"""Vectors are multiplied by 1/p, and must still fit float32."""


@dataclass(frozen=True)
class Sampled(MeanScheme):
    """Each client sends with probability p, and its vector is multiplied by 1/p.

    Law: unbiased if the inner scheme is; the mean of n vectors has the expected squared error of the inner scheme
    divided by p, plus (1-p) / (n p) times the mean squared norm. Bits: p times those of the inner scheme on average.
    The message of a client that is not sampled has no body and decodes to zeros; `takes_part` tells both sides
    that it need not be sent. Not addable. Cost: that of the inner scheme for sampled clients, none for others.

    Parameters
    ----------
    scheme : MeanScheme
        The scheme that sampled clients use.
    p : float
        Probability that a client sends, 2**-20 to 1.
    seed : int
        Seed of the sampling.

    Examples
    --------
    >>> from sumwire.dme import Rotated
    >>> scheme = Sampled(Rotated(16), p=0.5)
    >>> [scheme.takes_part(rank=rank) for rank in range(6)]
    [False, False, True, False, False, True]
    """

    scheme: MeanScheme
    p: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.scheme, MeanScheme):
            raise InputError(
                f"Sampled takes a scheme of sumwire.dme, such as Eden(4), not {type(self.scheme).__name__}"
            )
        if isinstance(self.scheme, Sampled):
            raise ConfigError("a sampled scheme cannot be sampled again: multiply the probabilities instead")
        if isinstance(self.p, bool) or not isinstance(self.p, numbers.Real) or not MIN_PROBABILITY <= self.p <= 1:
            raise ConfigError(f"p={self.p!r} is not a probability in 2**-20..1")
        object.__setattr__(self, "p", float(self.p))

    @property
    def _threshold(self) -> int:
        """A client sends if its sampling word, uniform in 0..2**32-1, is below this."""
        return round(self.p * 2**32)

    def takes_part(self, *, rank: int = 0, round_id: int = 0) -> bool:
        """Whether a client sends in a round; every client and the decoder can compute it in advance.

        Parameters
        ----------
        rank : int
            Number of the client.
        round_id : int
            Number of the round.

        Returns
        -------
        bool
            True if the client is sampled.

        Raises
        ------
        ConfigError
            If `rank` or `round_id` is out of range.
        """
        return self._keys(rank, round_id).sampling_word < self._threshold

    def _encode(self, x: Vector, stats: VectorStats, keys: StreamKeys) -> list[BodyPart]:
        if not self.takes_part(rank=keys.rank, round_id=keys.round_id):
            return []
        return self.scheme._encode(x, stats, self._inner(keys))

    def _decode(self, body: Body, size: int, keys: StreamKeys) -> Vector:
        if not self.takes_part(rank=keys.rank, round_id=keys.round_id):
            check_length(body, 0)
            return np.zeros(size, np.float32)
        return self.scheme._decode(body, size, self._inner(keys)) * np.float32(2**32 / self._threshold)

    def _inner(self, keys: StreamKeys) -> StreamKeys:
        return StreamKeys(self.scheme.seed, keys.round_id, keys.rank)

    def _body_bits(self, size: int) -> float:
        return self.p * self.scheme._body_bits(size)

    def _factor(self, size: int, n: int) -> float | None:
        inner = self.scheme._factor(size, n)
        return None if inner is None else inner / self.p + (1 - self.p) / self.p

    def lattice(self, workers: int, **options: Any) -> Lattice:
        raise ConfigError(
            f"{self!r} has no addable form: use the lattice of {self.scheme!r} on the workers that take part"
        )
