"""Methods that average the gradients of all workers: a codec through its verbs, or a peer with its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from sumwire import Lattice, Residual
from sumwire.lab.peers import Peer

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Exchange:
    """What one round gave, and the bits per value that a worker sent and received."""

    means: Sequence[Floats]
    """One for all workers, or one for each."""
    up_bits: float
    down_bits: float


class Method(ABC):
    """Averages round after round. `own_means` says whether workers may end a round with different means."""

    own_means: bool = False

    @abstractmethod
    def average(self, xs: Sequence[Floats]) -> Exchange:
        """The next round."""

    def residual_norm(self) -> float:
        """Root of the mean over workers of their residuals' squared norms: 0 without feedback."""
        return 0.0


class ByPeer(Method):
    """A scheme of `sumwire.lab.peers`.

    >>> from sumwire.lab.peers import PEERS
    >>> method = ByPeer(PEERS["bf16"](2, 3))
    >>> method.average([np.ones(3, np.float32), np.full(3, 3, np.float32)]).means[0].tolist()
    [2.0, 2.0, 2.0]
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def average(self, xs: Sequence[Floats]) -> Exchange:
        outcome = self.peer.average(xs)
        return Exchange((outcome.mean,), outcome.up_bits, outcome.down_bits)


class ByCodec(Method):
    """A Lattice: propose, join, encode, add, narrow, decode; with a residual at each worker if it has feedback.

    >>> method = ByCodec(Lattice(workers=2, bits=4))
    >>> exchange = method.average([np.ones(4096, np.float32)] * 2)
    >>> round(exchange.up_bits, 2), len(exchange.means)
    (4.02, 1)
    """

    def __init__(self, codec: Lattice) -> None:
        self.codec = codec
        self.residuals = [Residual(codec) for _ in range(codec.workers)] if codec.feedback else None
        self.rounds = 0

    def average(self, xs: Sequence[Floats]) -> Exchange:
        codec, size = self.codec, xs[0].size
        self.rounds += 1
        if self.residuals is None:
            terms = reduce(or_, map(codec.propose, xs))
            payloads = [codec.encode(x, terms, rank=r, round_id=self.rounds) for r, x in enumerate(xs)]
        else:
            corrected = [memory.correct(x) for memory, x in zip(self.residuals, xs, strict=True)]
            terms = reduce(or_, map(codec.propose, corrected))
            payloads = [memory.encode(terms, rank=r, round_id=self.rounds) for r, memory in enumerate(self.residuals)]
        total = codec.add(payloads).narrow()
        mean = codec.decode(total, divide_by="count" if self.residuals is None else "workers")
        up = sum(payload.nbytes for payload in payloads) / len(payloads)
        return Exchange((mean,), 8 * (up + terms.nbytes) / size, 8 * (total.nbytes + terms.nbytes) / size)

    def residual_norm(self) -> float:
        kept = [float(np.square(memory.value).sum()) for memory in self.residuals or () if not memory.empty]
        return float(np.mean(kept) ** 0.5) if kept else 0.0


def true_mean(xs: Sequence[Floats]) -> NDArray[np.float64]:
    """In double precision."""
    total = np.zeros(xs[0].shape)
    for x in xs:
        total += x
    return total / len(xs)
