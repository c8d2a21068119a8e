"""Schemes that send the largest values only: TopK and Deep Gradient Compression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sumwire.codec.options import real_number
from sumwire.lab.peers.base import MAX_SIZE, Outcome, Parts, Peer, Vector, bits_of, mean_of
from sumwire.lab.peers.exchange import Exchange, QuantizedPeer
from sumwire.lab.peers.quantizer import Draw, Quantizer

LEAST_DENSITY = 1e-9


class TopKQuantizer(Quantizer):
    """The share `density` of values that are largest in magnitude, at least one, with their indices in 32 bits each.

    Law: what is sent is exact, and no value that is not sent is larger. Bits: 64 * density.
    """

    block = MAX_SIZE
    unbiased = False

    def __init__(self, density: float) -> None:
        self.density = real_number("density", density, LEAST_DENSITY, 1.0)

    def encode(self, x: Vector, draw: Draw) -> Parts:
        count = min(x.size, max(1, round(self.density * x.size)))
        index = np.argpartition(np.abs(x), x.size - count)[x.size - count :]
        # A sender that sorts indices could code their gaps; published systems send them as they are.
        index.sort()
        return index.astype(np.uint32 if x.size <= 1 << 32 else np.uint64), x[index]

    def decode(self, parts: Parts, size: int) -> Vector:
        index, values = parts
        out = np.zeros(size, np.float32)
        out[index] = values
        return out


class TopK(QuantizedPeer):
    """The largest values of tensor plus residual, gathered by all.

    Published setting: error feedback, 32-bit indices and float32 values; 10 % is what THC's evaluation compares with.
    exchange="owner" lets a server send the largest values of the mean, with a residual of its own.

    >>> peer = TopK(2, 10)
    >>> peer.average([np.arange(10, dtype=np.float32)] * 2).mean.tolist()[-2:], peer.held_back().tolist()[-2:]
    ([0.0, 9.0], [8.0, 0.0])
    """

    paper = "Stich et al., Sparsified SGD with memory, NeurIPS 2018; Aji and Heafield, EMNLP 2017"

    def __init__(
        self, workers: int, size: int, *, density: float = 0.1, exchange: Exchange = "gather", seed: int = 0
    ) -> None:
        super().__init__(
            workers,
            size,
            up=TopKQuantizer(density),
            exchange=exchange,
            feedback=True,
            server_feedback=exchange == "owner",
            seed=seed,
        )
        self.name = f"topk-{100 * density:g}%" if exchange == "gather" else f"topk-{100 * density:g}%-{exchange}"


class DGC(Peer):
    """Deep Gradient Compression: the largest values of accumulated local momentum, gathered by all.

    Published setting: u = momentum * u + x and v = v + u at every worker ("momentum correction"); the largest 0.1 % of
    v are sent, and both u and v are cleared there ("momentum factor masking"); gradients whose norm exceeds clip /
    sqrt(workers) are scaled down to that first ("local gradient clipping"). Simplifications: the largest values are
    found exactly, where the paper samples a threshold; there is no warm-up of four epochs with higher densities;
    clipping is off unless `clip` is given.

    The result stands for what the optimizer adds to weights, momentum included: use it with plain SGD. It estimates
    the mean of the tensors only with momentum=0, or in the first round.

    >>> DGC(8, 1000, density=0.01).average([np.ones(1000, np.float32)] * 8).up_bits
    0.64
    """

    paper = "Lin et al., Deep gradient compression: reducing the communication bandwidth, ICLR 2018, 1712.01887"

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        density: float = 0.001,
        momentum: float = 0.9,
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(workers, size, seed=seed)
        self.largest = TopKQuantizer(density)
        self.momentum = np.float32(real_number("momentum", momentum, 0.0, 1.0))
        self.clip = None if clip is None else real_number("clip", clip, 1e-30, 1e30)
        self.velocity = np.zeros((self.workers, self.size), np.float32)
        self.unsent = np.zeros((self.workers, self.size), np.float32)
        self.name = f"dgc-{100 * density:g}%"

    def held_back(self) -> Vector:
        return mean_of(self.unsent)

    def _average(self, tensors: Sequence[Vector]) -> Outcome:
        payloads = [self.payload(x, rank) for rank, x in enumerate(tensors)]
        up_bits = self._per_value(sum(map(bits_of, payloads)) / self.workers)
        mean = mean_of(self.largest.decode(parts, self.size) for parts in payloads)
        return Outcome(mean, up_bits, up_bits * (self.workers - 1))

    def payload(self, x: Vector, rank: int) -> Parts:
        """What a worker sends to all."""
        velocity, unsent = self.velocity[rank], self.unsent[rank]
        velocity *= self.momentum
        velocity += self._clipped(x)
        unsent += velocity
        parts = self.largest.encode(unsent, self.uniform)
        velocity[parts[0]] = 0
        unsent[parts[0]] = 0
        return parts

    def _clipped(self, x: Vector) -> Vector:
        if self.clip is None:
            return x
        norm = float(np.linalg.norm(x.astype(np.float64)))
        limit = self.clip / self.workers**0.5
        return x if norm <= limit else x * np.float32(limit / norm)
