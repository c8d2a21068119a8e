"""EDEN in torch, step by step like the authors' release on a CPU: the baseline of benchmarks.dme.

Random signs, one Hadamard transform of the whole (padded) vector by in-place butterflies, `bucketize` between
Lloyd-Max centers, indices as int64. Written from the paper; only torch calls do the work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sumwire.dme.eden import lloyd_max


@dataclass
class Sent:
    """What a client would send, before packing."""

    index: torch.Tensor
    scale: torch.Tensor
    seed: int
    size: int


def hadamard_(v: torch.Tensor) -> torch.Tensor:
    size, half = v.numel(), 1
    while half < size:
        pairs = v.view(size // (2 * half), 2, half)
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = pairs[:, 0] - 2 * pairs[:, 1]
        half *= 2
    return v.mul_(1 / math.sqrt(size))


def signs(size: int, seed: int) -> torch.Tensor:
    return 2 * torch.empty(size).bernoulli_(generator=torch.Generator().manual_seed(seed)) - 1


class EdenTorch:
    """Encode and decode with `bits` bits per coordinate."""

    def __init__(self, bits: int) -> None:
        self.centers, self.edges = (torch.from_numpy(array.copy()) for array in lloyd_max(bits))

    def encode(self, x: torch.Tensor, seed: int) -> Sent:
        padded = 1 << max(0, x.numel() - 1).bit_length()
        y = torch.nn.functional.pad(x, (0, padded - x.numel()))
        y = hadamard_(y * signs(padded, seed))
        energy = y.square().sum()
        index = torch.bucketize(y * (math.sqrt(padded) / energy.sqrt()), self.edges)
        return Sent(index, energy / (torch.take(self.centers, index) @ y), seed, x.numel())

    def decode(self, sent: Sent) -> torch.Tensor:
        y = hadamard_(sent.scale * torch.take(self.centers, sent.index))
        return (y * signs(y.numel(), sent.seed))[: sent.size]
