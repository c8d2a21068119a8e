"""Blocks of small integers with one float32 scale each: QSGD, and the 4-bit gradients of ZeRO++ and SDP4Bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from sumwire.codec.options import one_of, whole_number
from sumwire.errors import ConfigError
from sumwire.kernels.lattice.blocks import fwht
from sumwire.lab.peers.base import Outcome, Parts, Vector, bits_of, mean_of
from sumwire.lab.peers.exchange import Exchange, QuantizedPeer
from sumwire.lab.peers.quantizer import Draw, Quantizer, divide, in_blocks, pack, stochastic, unpack

Rounding = Literal["nearest", "stochastic"]
MAX_BITS = 16
MAX_BLOCK = 1 << 24


class IntegerQuantizer(Quantizer):
    """Blocks of integers in units of the block's norm / s.

    Stochastic: from -s to s with s = 2**(bits - 1) - 1, one code less than there could be. Nearest: s = 2**(bits - 1)
    and all codes from -s to s - 1, as DeepSpeed's kernels do (from memory): steps are finer, and +norm gets s - 1.

    Law: the error of a value is below norm / s, and below half of that if rounded to nearest and not to s. With
    norm="l2" and stochastic rounding, the expected squared error of a block of d values is at most
    min(d / s**2, sqrt(d) / s) of its energy (QSGD, lemma 3.1). Bits: `bits` and 32 / block.
    """

    def __init__(
        self, bits: int, block: int, *, rounding: Rounding = "nearest", norm: Literal["max", "l2"] = "max"
    ) -> None:
        self.bits = whole_number("bits", bits, 2, MAX_BITS)
        self.block = whole_number("block", block, 1, MAX_BLOCK)
        self.unbiased = one_of("rounding", rounding, ("nearest", "stochastic")) == "stochastic"
        self.norm = one_of("norm", norm, ("max", "l2"))
        half = 1 << self.bits - 1
        self.steps = np.float32(half - 1 if self.unbiased else half)
        """Of the norm: s."""
        self.largest = np.float32(half - 1)

    def encode(self, x: Vector, draw: Draw) -> Parts:
        rows = in_blocks(x, self.block)
        if self.norm == "max":
            scale = np.abs(rows).max(axis=1)
        else:
            scale = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1)).astype(np.float32)
        index = divide(rows, scale[:, None]).reshape(-1)[: x.size] * self.steps
        index = stochastic(index, draw) if self.unbiased else np.rint(index)
        return pack(np.clip(index, -self.steps, self.largest) + self.steps, self.bits), scale

    def decode(self, parts: Parts, size: int) -> Vector:
        codes, scale = parts
        index = unpack(codes, self.bits, size).astype(np.float32) - self.steps
        values = in_blocks(index, self.block) / self.steps * scale[:, None]
        return np.asarray(values.reshape(-1)[:size], np.float32)


class HadamardQuantizer(Quantizer):
    """Another quantizer after an orthonormal Hadamard transform of runs of `order` values, which spreads outliers.

    The last run is filled up with zeros, and after the transform they travel, too.
    """

    def __init__(self, inner: Quantizer, order: int) -> None:
        self.order = whole_number("order", order, 1, inner.block)
        if self.order & (self.order - 1) or inner.block % self.order:
            raise ConfigError(f"order={order} must be a power of two that divides the block, {inner.block}")
        self.inner, self.block, self.unbiased = inner, inner.block, inner.unbiased

    def encode(self, x: Vector, draw: Draw) -> Parts:
        return self.inner.encode(self._transform(x), draw)

    def decode(self, parts: Parts, size: int) -> Vector:
        return self._transform(self.inner.decode(parts, size + -size % self.order))[:size]

    def _transform(self, x: Vector) -> Vector:
        # Its own inverse.
        spread = fwht(in_blocks(x, self.order) * np.float32(1 / math.sqrt(self.order)))
        return np.asarray(spread.reshape(-1), np.float32)


class QSGD(QuantizedPeer):
    """Stochastic rounding to s levels of a bucket's norm.

    Published setting: buckets of 512 and 4 bits, the maximum as norm (the paper's experiments; its bounds are for
    norm="l2"), payloads gathered by all. Simplification: fixed-width codes instead of Elias codes, so zeros cost as
    much as others. exchange="owner" quantizes the mean in the same way, which is not in the paper but needs fewer bits.

    >>> QSGD(4, 512).average([np.ones(512, np.float32)] * 4).bits
    16.25
    """

    paper = "Alistarh et al., QSGD: communication-efficient SGD via gradient quantization and encoding, NeurIPS 2017"

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        bits: int = 4,
        bucket: int = 512,
        norm: Literal["max", "l2"] = "max",
        exchange: Exchange = "gather",
        seed: int = 0,
    ) -> None:
        quantizer = IntegerQuantizer(bits, bucket, rounding="stochastic", norm=norm)
        super().__init__(workers, size, up=quantizer, exchange=exchange, seed=seed)
        self.name = f"qsgd-{bits}" if exchange == "gather" else f"qsgd-{bits}-{exchange}"


class ZeroPlusPlus(QuantizedPeer):
    """qgZ: blocks of symmetric 4-bit integers, all-to-all, the owner sums in float32.

    Published setting: 4 bits, symmetric, nearest. Simplifications: one level of all-to-all where the paper has one
    within and one between nodes; blocks of 256 are ours; and the mean goes back quantized in the same way, where
    ZeRO++ sends updated weights (in 8 bits).

    >>> ZeroPlusPlus(2, 256).average([np.ones(256, np.float32)] * 2).bits
    8.25
    """

    paper = "Wang et al., ZeRO++: extremely efficient collective communication for giant model training, 2306.10209"

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        bits: int = 4,
        block: int = 256,
        exchange: Exchange = "owner",
        seed: int = 0,
    ) -> None:
        super().__init__(workers, size, up=IntegerQuantizer(bits, block), exchange=exchange, seed=seed)
        self.name = f"qgz-{bits}" if exchange == "owner" else f"qgz-{bits}-{exchange}"


class SDP4Bit(QuantizedPeer):
    """Two-level smooth quantization: 8 bits within a node, 4 bits after a Hadamard transform between nodes.

    Published setting: 8 and 4 bits, groups of 128 (as the authors' release documents), the Hadamard transform before
    the 4-bit step only. Simplifications: every worker is a node unless `per_node` says otherwise; transforms of 32 and
    nearest rounding are from memory of the paper and were not checked; the mean goes back in 4 bits and groups of 128,
    where the paper sends differences of weights in 4 bits.
    Bits: those of both levels are counted alike, although links within a node are faster.

    >>> SDP4Bit(2, 128).average([np.ones(128, np.float32)] * 2).bits
    8.5
    """

    paper = "Jia et al., SDP4Bit: toward 4-bit communication quantization in sharded data parallelism, NeurIPS 2024"

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        bits: int = 4,
        per_node: int = 1,
        group: int = 128,
        order: int = 32,
        rounding: Rounding = "nearest",
        seed: int = 0,
    ) -> None:
        integers = IntegerQuantizer(bits, group, rounding=rounding)
        super().__init__(workers, size, up=HadamardQuantizer(integers, order), down=integers, seed=seed)
        self.within = IntegerQuantizer(8, group, rounding=rounding)
        self.per_node = whole_number("per_node", per_node, 1, self.workers)
        if self.workers % self.per_node:
            raise ConfigError(f"per_node={per_node} does not divide workers={workers}: nodes must be of one size")
        self.name = f"sdp4bit-{bits}" if per_node == 1 else f"sdp4bit-{bits}-nodes-of-{per_node}"

    def _average(self, tensors: Sequence[Vector]) -> Outcome:
        if self.per_node == 1:
            return super()._average(tensors)
        nodes, sent = [], 0
        for first in range(0, self.workers, self.per_node):
            decoded = []
            for x in tensors[first : first + self.per_node]:
                parts = self.within.encode(x, self.uniform)
                decoded.append(self.within.decode(parts, self.size))
                sent += bits_of(parts)
            # Each worker then owns a share of the node's mean, and sends that.
            value, bits = self._send(mean_of(decoded), 0)
            nodes.append(value)
            sent += bits
        mean, back = self._send_back(mean_of(nodes))
        return Outcome(mean, self._per_value(sent / self.workers), self._per_value(back))
