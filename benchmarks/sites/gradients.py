"""Gradients averaged in every step, as DDP does with a hook: by Sumwire, in fp16, or by PowerSGD."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sumwire.codec.lattice.codec import Lattice
from sumwire.lab.peers.casts import AllReduce
from sumwire.lab.peers.low_rank import PowerSGD
from sumwire.lab.simulate import ByCodec
from sumwire.train.ddp.layout import exact_tensors
from sumwire.train.options import choose_codec

Floats = NDArray[np.float32]
EXACT_BELOW = 1024
"""The default of `attach`."""


class Averager:
    """Counts bytes in both directions of a server, of one worker."""

    def __init__(self, method: str, workers: int, parameters: Sequence[Tensor], seed: int) -> None:
        self.up = self.down = 0.0
        self._shapes = [parameter.shape for parameter in parameters]
        self._sizes = [parameter.numel() for parameter in parameters]
        kind, _, number = method.partition("-")
        makers = {"fp16": self._fp16, "powersgd": self._power_sgd, "sumwire": self._sumwire}
        if kind not in makers:
            raise SystemExit(f"method 'ddp-{method}' is not known: choose ddp-fp16, ddp-powersgd-4 or ddp-sumwire-4")
        self._average = makers[kind](workers, int(number or 0), seed)

    def __call__(self, gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """The means, of a list of gradients for each worker."""
        means = self._average([[each.flatten().numpy() for each in mine] for mine in gradients])
        return [torch.from_numpy(mean).reshape(shape) for mean, shape in zip(means, self._shapes, strict=True)]

    def _fp16(self, workers: int, _: int, seed: int) -> Callable[[list[list[Floats]]], list[Floats]]:
        peer = AllReduce(workers, sum(self._sizes), kind="fp16", seed=seed)

        def average(gradients: list[list[Floats]]) -> list[Floats]:
            outcome = peer.average([np.concatenate(mine) for mine in gradients])
            self._count(outcome.up_bits * peer.size, outcome.down_bits * peer.size)
            return self._split(outcome.mean)

        return average

    def _power_sgd(self, workers: int, rank: int, seed: int) -> Callable[[list[list[Floats]]], list[Floats]]:
        """A matrix for each layer; vectors are sent as they are."""
        peers = [
            PowerSGD(workers, size, rank=rank, shape=tuple(shape), seed=seed)  # type: ignore[arg-type]
            if len(shape) == 2
            else AllReduce(workers, size, kind="fp32", seed=seed)
            for size, shape in zip(self._sizes, self._shapes, strict=True)
        ]

        def average(gradients: list[list[Floats]]) -> list[Floats]:
            means = []
            for peer, *tensors in zip(peers, *gradients, strict=True):
                outcome = peer.average(tensors)
                self._count(outcome.up_bits * peer.size, outcome.down_bits * peer.size)
                means.append(outcome.mean)
            return means

        return average

    def _sumwire(self, workers: int, bits: int, seed: int) -> Callable[[list[list[Floats]]], list[Floats]]:
        """All compressed tensors in one bucket, the smallest exactly: what `attach` does."""
        codec = choose_codec(workers, bits, {"seed": seed})
        assert isinstance(codec, Lattice)
        method = ByCodec(codec)
        exact = set(exact_tensors(codec, self._sizes, EXACT_BELOW))
        large = [k for k in range(len(self._sizes)) if k not in exact]

        def average(gradients: list[list[Floats]]) -> list[Floats]:
            exchange = method.average([np.concatenate([mine[k] for k in large]) for mine in gradients])
            [decoded], size = exchange.means, sum(self._sizes[k] for k in large)
            plain = 32 * sum(self._sizes[k] for k in exact)
            self._count(exchange.up_bits * size + plain, exchange.down_bits * size + plain)
            edges = np.cumsum([self._sizes[k] for k in large])[:-1]
            means = dict(zip(large, np.split(decoded, edges), strict=True))
            for k in exact:
                means[k] = np.mean([mine[k] for mine in gradients], axis=0)
            return [means[k] for k in range(len(self._sizes))]

        return average

    def _split(self, flat: Floats) -> list[Floats]:
        return np.split(flat, np.cumsum(self._sizes)[:-1])

    def _count(self, up_bits: float, down_bits: float) -> None:
        self.up, self.down = self.up + up_bits / 8, self.down + down_bits / 8
