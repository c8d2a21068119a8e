"""Plain all-reduce in float32, float16 and bfloat16: the baselines that need no scheme."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sumwire.codec.options import one_of
from sumwire.lab.peers.base import Parts, Vector
from sumwire.lab.peers.exchange import Exchange, QuantizedPeer
from sumwire.lab.peers.quantizer import Draw, Quantizer, from_bf16

Kind = Literal["fp32", "fp16", "bf16"]


class CastQuantizer(Quantizer):
    """Values in a narrower float, rounded to nearest even."""

    block = 1

    def __init__(self, kind: Kind) -> None:
        self.kind = one_of("kind", kind, ("fp32", "fp16", "bf16"))
        # Rounding to nearest is no random choice that would average out.
        self.unbiased = self.kind == "fp32"

    def encode(self, x: Vector, draw: Draw) -> Parts:
        if self.kind == "bf16":
            word = np.ascontiguousarray(x).view(np.uint32)
            odd = word >> np.uint32(16) & np.uint32(1)
            return (((word + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16),)
        return (x.astype(np.float16 if self.kind == "fp16" else np.float32),)

    def decode(self, parts: Parts, size: int) -> Vector:
        (values,) = parts
        return from_bf16(values) if self.kind == "bf16" else values.astype(np.float32)


class AllReduce(QuantizedPeer):
    """All-reduce of plain floats.

    Published setting: as torch's all_reduce, and its fp16 and bf16 hooks. Simplification: by default values are added
    in float32 and the mean is rounded once, which is better than a real all-reduce in 16 bits; exchange="ring" rounds
    at every hop, as a ring does. Bits: 16 or 32 up and down. float16 overflows at 65504, which raises `RangeError`.

    >>> AllReduce(2, 1, kind="fp16").average([np.array([1.0001], np.float32)] * 2).mean.tolist()
    [1.0]
    """

    paper = "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009"
    addable = True

    def __init__(
        self, workers: int, size: int, *, kind: Kind = "fp32", exchange: Exchange = "owner", seed: int = 0
    ) -> None:
        super().__init__(workers, size, up=CastQuantizer(kind), exchange=exchange, seed=seed)
        self.name = kind if exchange == "owner" else f"{kind}-{exchange}"
