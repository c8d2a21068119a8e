"""Blocks of tiny floats with a shared scale: MXFP4 and MXFP6, and fp8 by rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.options import one_of, whole_number
from sumwire.lab.peers.base import Parts, Vector
from sumwire.lab.peers.exchange import Exchange, QuantizedPeer
from sumwire.lab.peers.integers import MAX_BLOCK, Rounding
from sumwire.lab.peers.quantizer import Draw, Quantizer, divide, in_blocks, pack, stochastic, unpack


@dataclass(frozen=True)
class TinyFloat:
    """A float of few bits: a sign, an exponent and a mantissa. No code is spent on infinity here.

    >>> E2M1.values.tolist()
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    """

    exponent_bits: int
    mantissa_bits: int
    largest: float

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def least_exponent(self) -> int:
        """Of normal numbers; smaller ones have its step."""
        return 2 - (1 << self.exponent_bits - 1)

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """The value of every non-negative code up to that of `largest`."""
        codes = np.arange(1 << self.exponent_bits + self.mantissa_bits)
        exponent, mantissa = codes >> self.mantissa_bits, codes & (1 << self.mantissa_bits) - 1
        whole = np.where(exponent > 0, 1 << self.mantissa_bits, 0) + mantissa
        values = np.ldexp(
            whole.astype(np.float32), np.maximum(exponent, 1) - 1 + self.least_exponent - self.mantissa_bits
        )
        return np.asarray(values[values <= self.largest], np.float32)

    def encode(self, x: NDArray[np.float32], rounding: Rounding, draw: Draw) -> NDArray[Any]:
        """Codes; to nearest even or stochastically, and to `largest` at most."""
        magnitude = np.abs(x)
        exponent = np.frexp(magnitude)[1] - 1
        # Also where the magnitude is 0, whose exponent means nothing.
        exponent = np.where(magnitude > 0, np.maximum(exponent, self.least_exponent), self.least_exponent)
        steps = np.ldexp(magnitude, self.mantissa_bits - exponent)
        steps = np.rint(steps) if rounding == "nearest" else stochastic(steps, draw)
        # Codes count on from one exponent to the next, so a mantissa that overflows needs no care.
        code = ((exponent - self.least_exponent) << self.mantissa_bits) + steps.astype(np.int32)
        sign = np.signbit(x).astype(np.int32) << self.bits - 1
        return np.asarray(np.minimum(code, len(self.values) - 1) | sign)

    def decode(self, codes: NDArray[np.uint16]) -> NDArray[np.float32]:
        sign_bit = np.uint16(1 << self.bits - 1)
        values = self.values[codes & (sign_bit - 1)]
        return np.asarray(np.where(codes & sign_bit, -values, values), np.float32)


E2M1 = TinyFloat(2, 1, 6.0)
E2M3 = TinyFloat(2, 3, 7.5)
E3M2 = TinyFloat(3, 2, 28.0)
E4M3 = TinyFloat(4, 3, 448.0)
_BIAS = 127


class BlockFloatQuantizer(Quantizer):
    """Tiny floats in units of a scale per block: a power of two in one byte, or a float32.

    Law: with a power of two, nearest rounding follows the MX specification, whose scale may leave the block's maximum
    above `largest`, where it saturates. Stochastic rounding shrinks values by largest / 2**(exponent + 1) first and
    stretches them after decoding (Tseng et al., 2502.20586: 3/4 for E2M1), so nothing saturates and it is unbiased.
    Bits: those of the float and 8 / block or 32 / block.
    """

    def __init__(
        self,
        kind: TinyFloat,
        block: int,
        *,
        scale: Literal["power", "float32"] = "power",
        rounding: Rounding = "nearest",
    ) -> None:
        self.kind = kind
        self.block = whole_number("block", block, 1, MAX_BLOCK)
        self.power = one_of("scale", scale, ("power", "float32")) == "power"
        self.rounding: Rounding = rounding
        self.unbiased = one_of("rounding", rounding, ("nearest", "stochastic")) == "stochastic"
        self.exponent = math.frexp(kind.largest)[1] - 1
        shrinks = self.power and self.unbiased
        self.shrink = np.float32(kind.largest / 2 ** (self.exponent + 1) if shrinks else 1)

    def encode(self, x: Vector, draw: Draw) -> Parts:
        rows = in_blocks(x, self.block)
        peak = np.abs(rows).max(axis=1)
        if self.power:
            exponent = np.frexp(peak)[1] - 1 - self.exponent
            scale = np.where(peak > 0, np.clip(exponent, -_BIAS, _BIAS) + _BIAS, 0).astype(np.uint8)
            scaled = np.ldexp(rows, _BIAS - scale.astype(np.int32)[:, None]) * self.shrink
        else:
            scale = (peak / np.float32(self.kind.largest)).astype(np.float32)
            scaled = divide(rows, scale[:, None])
        codes = self.kind.encode(scaled.reshape(-1)[: x.size], self.rounding, draw)
        return pack(codes, self.kind.bits), scale

    def decode(self, parts: Parts, size: int) -> Vector:
        codes, scale = parts
        rows = in_blocks(self.kind.decode(unpack(codes, self.kind.bits, size)), self.block)
        if self.power:
            values = np.ldexp(rows / self.shrink, scale.astype(np.int32)[:, None] - _BIAS)
        else:
            values = rows * scale[:, None]
        return np.asarray(values.reshape(-1)[:size], np.float32)


class MX(QuantizedPeer):
    """Microscaling formats: E2M1 (MXFP4), E2M3 or E3M2 (MXFP6) with a power of two for 32 values.

    Published setting: blocks of 32, E8M0 scales, nearest even or stochastic rounding. The format says nothing about
    collectives: here an owner adds in float32 and sends the mean in the same format; exchange="ring" quantizes at every
    hop.

    >>> MX(2, 32, kind=E2M1).average([np.ones(32, np.float32)] * 2).bits
    8.5
    """

    paper = "Rouhani et al., Microscaling data formats for deep learning, 2310.10537; OCP MX specification 1.0"

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        kind: TinyFloat = E2M1,
        rounding: Rounding = "nearest",
        exchange: Exchange = "owner",
        seed: int = 0,
    ) -> None:
        quantizer = BlockFloatQuantizer(kind, 32, rounding=rounding)
        super().__init__(workers, size, up=quantizer, exchange=exchange, seed=seed)
        words = [f"mxfp{kind.bits}", "stochastic" * (rounding == "stochastic"), exchange * (exchange != "owner")]
        self.name = "-".join(filter(None, words))


class Fp8Rows(QuantizedPeer):
    """E4M3 with a float32 scale for each row of 512, added in float32 by the owner and quantized again, as in torchft.

    Published setting: all-to-all, float32 sum, requantization, all-gather. Simplification: rows of 512 of the flattened
    tensor, where torchft takes rows of the tensors as they are.

    >>> Fp8Rows(2, 512).average([np.ones(512, np.float32)] * 2).bits
    16.125
    """

    paper = "torchft (meta-pytorch/torchft), quantized all-reduce; Micikevicius et al., FP8 formats, 2209.05433"

    def __init__(self, workers: int, size: int, *, exchange: Exchange = "owner", seed: int = 0) -> None:
        quantizer = BlockFloatQuantizer(E4M3, 512, scale="float32")
        super().__init__(workers, size, up=quantizer, exchange=exchange, seed=seed)
        self.name = "fp8-rows" if exchange == "owner" else f"fp8-rows-{exchange}"
