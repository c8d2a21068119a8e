"""Schemes that live on error feedback: EF-signSGD and LoCo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from sumwire.codec.options import one_of, real_number, switch, whole_number
from sumwire.lab.peers.base import MAX_SIZE, Parts, Vector
from sumwire.lab.peers.casts import CastQuantizer
from sumwire.lab.peers.exchange import QuantizedPeer
from sumwire.lab.peers.integers import IntegerQuantizer
from sumwire.lab.peers.quantizer import Draw, Quantizer, pack, unpack


class SignQuantizer(Quantizer):
    """Signs times the mean magnitude of their block; 0 counts as positive.

    Law: the squared error of a block of d values is its energy minus (sum of magnitudes)**2 / d. Bits: 1 and 32 /
    block.
    """

    unbiased = False

    def __init__(self, block: int) -> None:
        self.block = whole_number("block", block, 1, MAX_SIZE)

    def encode(self, x: Vector, draw: Draw) -> Parts:
        starts = np.arange(0, x.size, self.block)
        lengths = np.diff(starts, append=x.size)
        scale = np.add.reduceat(np.abs(x.astype(np.float64)), starts) / lengths
        return pack(x >= 0, 1), scale.astype(np.float32)

    def decode(self, parts: Parts, size: int) -> Vector:
        signs, scale = parts
        of_value = np.repeat(scale, self.block)[:size] if len(scale) > 1 else scale[0]
        return np.asarray((2 * unpack(signs, 1, size).astype(np.float32) - 1) * of_value, np.float32)


class EFSign(QuantizedPeer):
    """Scaled signs with error feedback at every worker.

    Published setting: the mean magnitude as scale, no majority vote; payloads are gathered by all, and everyone
    averages scaled signs. With `double_way`, a server averages them, adds its own residual and sends a scaled sign
    back, which is the double-way compression of dist-EF-SGD (Zheng et al., NeurIPS 2019) and DoubleSqueeze (Tang et
    al., ICML 2019). Simplification: one scale per tensor unless `block` is given; the papers have one per layer.

    >>> EFSign(3, 64, double_way=True).average([np.ones(64, np.float32)] * 3).bits
    3.0
    """

    paper = "Karimireddy et al., Error feedback fixes SignSGD and other gradient compression schemes, ICML 2019"

    def __init__(
        self, workers: int, size: int, *, double_way: bool = False, block: int | None = None, seed: int = 0
    ) -> None:
        double_way = switch("double_way", double_way)
        super().__init__(
            workers,
            size,
            up=SignQuantizer(max(1, size) if block is None else block),
            exchange="owner" if double_way else "gather",
            feedback=True,
            server_feedback=double_way,
            seed=seed,
        )
        self.name = "ef-sign-double" if double_way else "ef-sign"


class LoCo(QuantizedPeer):
    """4-bit integers of the tensor plus a moving average of past errors, which is kept in 8 bits.

    Published setting: h = x + e is quantized to 4 bits for an all-to-all; e becomes (1 - beta) e + beta (h - decoded
    h), quantized to 8 bits, and is dropped every `reset` rounds; the owner's weights go back in 16 bits, here the mean
    does. beta=0.8 and reset=1024 are the defaults of DeepSpeed's LoCo-Zero++, taken to weigh the newest error; the
    paper's own values were not at hand. Simplifications: scales follow the maximum of a block, where the paper also
    has one tuned scale for all; blocks of 256 are ours. down="integers" sends the mean in the integers that payloads
    have, to compare at equal bits.

    No law of sums holds: the average forgets a share of the error, 8 bits round it, and a reset drops it.
    Bits: `bits` and 32 / block up; 16 down, or as up.

    >>> LoCo(2, 256, down="integers").average([np.ones(256, np.float32)] * 2).bits
    8.25
    """

    paper = "Xie et al., LoCo: low-bit communication adaptor for large-scale model training, TPAMI 2025, 2407.04480"

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        bits: int = 4,
        block: int = 256,
        beta: float = 0.8,
        reset: int = 1024,
        down: Literal["bf16", "integers"] = "bf16",
        seed: int = 0,
    ) -> None:
        integers = IntegerQuantizer(bits, block)
        wide = one_of("down", down, ("bf16", "integers")) == "bf16"
        super().__init__(workers, size, up=integers, down=CastQuantizer("bf16") if wide else integers, seed=seed)
        self.beta = np.float32(real_number("beta", beta, 0.0, 1.0))
        self.reset = whole_number("reset", reset, 1, 1 << 62)
        self.memory = IntegerQuantizer(8, block)
        self.errors: list[Parts | None] = [None] * self.workers
        self.rounds = [0] * self.workers
        self.name = f"loco-{bits}" if wide else f"loco-{bits}-{bits}"
        self.unbiased = False

    def payloads(self, x: Vector, rank: int, shards: Sequence[slice]) -> tuple[list[Parts], Vector | None]:
        kept = self.errors[rank]
        error = np.zeros(self.size, np.float32) if kept is None else self.memory.decode(kept, self.size)
        compensated = x + error
        sent = [self.up.encode(compensated[shard], self.uniform) for shard in shards]
        value = self.decoded(sent, shards)
        error = (1 - self.beta) * error + self.beta * (compensated - value)
        self.rounds[rank] += 1
        forget = self.rounds[rank] % self.reset == 0
        self.errors[rank] = None if forget else self.memory.encode(error, self.uniform)
        return sent, value
