"""Only some clients send (Suresh et al. 2017, section 5)."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from sumwire.codec.lattice.codec import Lattice
from sumwire.dme.message import Body
from sumwire.dme.scheme import Array, Draw, Facts, MeanScheme, Vector, need_bytes
from sumwire.errors import ConfigError, InputError

SMALLEST = 2.0**-20
"""A probability: what is sent counts 1/p times, and must still fit float32."""


@dataclass(frozen=True)
class Sampled(MeanScheme):
    """Each client sends with probability p, and what it sends counts 1/p times.

    Law: unbiased if the scheme is. MSE of the mean of n: that of the scheme / p, and (1-p) / (n p) times the mean
    squared norm. Bits: p times the scheme's on average; `bits` is that average. A client that is not drawn
    has a message without a body, which decodes to zeros; both sides know by `takes_part` that it need not be sent.

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
            raise InputError(f"Sampled takes a mean scheme, not {type(self.scheme).__name__}")
        if isinstance(self.scheme, Sampled):
            raise ConfigError("a sampled scheme cannot be sampled again: multiply the probabilities")
        if isinstance(self.p, bool) or not isinstance(self.p, numbers.Real) or not SMALLEST <= self.p <= 1:
            raise ConfigError(f"p={self.p!r} is not a probability in 2**-20..1")
        object.__setattr__(self, "p", float(self.p))

    @property
    def _threshold(self) -> int:
        """Of 2**32 equal chances, those on which a client sends."""
        return round(self.p * 2**32)

    def takes_part(self, *, rank: int = 0, round_id: int = 0) -> bool:
        """Whether this client sends in this round: known to everybody beforehand."""
        return self._draw(rank, round_id).chance < self._threshold

    def _encode(self, x: Vector, facts: Facts, draw: Draw) -> list[Array]:
        if not self.takes_part(rank=draw.rank, round_id=draw.round_id):
            return []
        return self.scheme._encode(x, facts, self._inner(draw))

    def _decode(self, body: Body, size: int, draw: Draw) -> Vector:
        if not self.takes_part(rank=draw.rank, round_id=draw.round_id):
            need_bytes(body, 0)
            return np.zeros(size, np.float32)
        return self.scheme._decode(body, size, self._inner(draw)) * np.float32(2**32 / self._threshold)

    def _inner(self, draw: Draw) -> Draw:
        return Draw(self.scheme.seed, draw.round_id, draw.rank)

    def _body_bits(self, size: int) -> float:
        return self.p * self.scheme._body_bits(size)

    def _factor(self, size: int, n: int) -> float | None:
        inner = self.scheme._factor(size, n)
        return None if inner is None else inner / self.p + (1 - self.p) / self.p

    def lattice(self, workers: int, **options: Any) -> Lattice:
        raise ConfigError(
            f"{self!r} has no form that adds: give the lattice of {self.scheme!r} to the workers that take part"
        )
