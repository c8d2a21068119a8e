"""TernGrad: gradients of -1, 0 and 1 times a scale that workers share, so they can be added."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sumwire.codec.options import real_number, whole_number
from sumwire.errors import ConfigError
from sumwire.lab.peers.base import Outcome, Parts, Peer, Vector, bits_of
from sumwire.lab.peers.quantizer import divide, pack, unpack


class TernGrad(Peer):
    """Each value becomes 0 or the sign times its layer's scale, so that the expected value is right.

    Published setting: values clipped at 2.5 standard deviations of their layer (which biases them; clip=None does not),
    the scale of a layer is the largest magnitude among all workers ("scaler sharing"), and the server sends the sum in
    log2(2 n + 1) bits. Simplifications: two bits per ternary value instead of log2(3); whole bits per sum; a tensor is
    a single layer unless `layers` gives their sizes.

    >>> peer = TernGrad(3, 800, clip=None)
    >>> peer.average([np.ones(800, np.float32)] * 3).mean[:3].tolist()
    [1.0, 1.0, 1.0]
    """

    paper = "Wen et al., TernGrad: ternary gradients to reduce communication in distributed deep learning, NeurIPS 2017"
    addable = True

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        clip: float | None = 2.5,
        layers: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(workers, size, seed=seed)
        self.clip = None if clip is None else real_number("clip", clip, 0.1, 1e6)
        self.layers = [self.size] if layers is None else [whole_number("layers", k, 1, self.size) for k in layers]
        if sum(self.layers) != self.size:
            raise ConfigError(f"layers add up to {sum(self.layers)} values, not size={size}: give the size of each")
        self.unbiased = self.clip is None
        self.width = (2 * self.workers).bit_length()
        """Bits of a sum."""
        self.name = "terngrad" if clip is not None else "terngrad-unclipped"

    def _average(self, tensors: Sequence[Vector]) -> Outcome:
        clipped = [self.clipped(x) for x in tensors]
        scales = np.max([self.scales(x) for x in clipped], axis=0)
        of_value = np.repeat(scales, self.layers)
        payloads = [self.encode(x, of_value) for x in clipped]
        total = self.add(payloads, self.size)
        mean = self.decode(total, of_value)
        # Scales travel twice: own ones up, shared ones down.
        up, down = bits_of((*payloads[0], scales)), bits_of((*total, scales))
        return Outcome(mean, self._per_value(up), self._per_value(down))

    def scales(self, clipped: Vector) -> Vector:
        """The largest magnitude of each layer, of which workers share the largest."""
        starts = np.cumsum([0, *self.layers[:-1]])
        return np.asarray(np.maximum.reduceat(np.abs(clipped), starts), np.float32)

    def encode(self, clipped: Vector, of_value: Vector) -> Parts:
        """Ternary values by the shared scale of each value."""
        hit = self.uniform(len(clipped)) < divide(np.abs(clipped), of_value)
        return (pack(np.where(hit, np.sign(clipped), 0) + 1, 2),)

    def add(self, payloads: Sequence[Parts], size: int) -> Parts:
        """The sum of ternary values of all workers, in as many bits as it needs."""
        sums = np.zeros(size, np.int32)
        for (codes,) in payloads:
            sums += unpack(codes, 2, size).astype(np.int32) - 1
        return (pack(sums + self.workers, self.width),)

    def decode(self, total: Parts, of_value: Vector) -> Vector:
        count = unpack(total[0], self.width, len(of_value)).astype(np.float32) - np.float32(self.workers)
        return np.asarray(count / np.float32(self.workers) * of_value, np.float32)

    def clipped(self, x: Vector) -> Vector:
        if self.clip is None:
            return x
        out = np.empty_like(x)
        start = 0
        for length in self.layers:
            layer = x[start : start + length]
            limit = np.float32(self.clip * layer.std(dtype=np.float64))
            # A layer of equal values has no deviation, and clipping would leave nothing of it.
            out[start : start + length] = np.clip(layer, -limit, limit) if limit > 0 else layer
            start += length
        return out
