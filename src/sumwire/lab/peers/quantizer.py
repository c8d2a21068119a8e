"""Quantizers: values to the arrays that travel, and back. How these arrays meet is exchange.py's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels import scalar
from sumwire.lab.peers.base import Parts, Vector

Draw: TypeAlias = Callable[[int], Vector]
"""Given a count, that many random numbers in [0, 1), for stochastic rounding."""


Layout: TypeAlias = list[tuple[np.dtype[Any], int]]


class Quantizer(ABC):
    """Encodes a tensor without memory of others.

    Law: `decode` needs nothing but the parts and the size, and no two blocks of `block` values know of one another.
    How long the parts are depends on the size alone.
    """

    block: int
    """Values that share a scale: a tensor is cut into shards at multiples of it."""
    unbiased: bool
    """Whether the expected decoded value is the value."""

    @abstractmethod
    def encode(self, x: Vector, draw: Draw) -> Parts: ...

    @abstractmethod
    def decode(self, parts: Parts, size: int) -> Vector: ...

    def layout(self, size: int) -> Layout:
        """Type and length of each array of a message of `size` values, at least one."""
        parts = self.encode(np.zeros(size, np.float32), lambda count: np.zeros(count, np.float32))
        return [(part.dtype, part.size) for part in parts]


def pack(codes: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Codes below 2**width, at `width` bits each.

    >>> pack(np.array([1, 2, 3]), 4).tolist()
    [33, 3]
    """
    flat = np.ascontiguousarray(codes.reshape(-1), np.uint16)
    out = np.empty(-(-flat.size * width // 8), np.uint8)
    scalar.pack(flat, width, out)
    return out


def unpack(data: NDArray[np.uint8], width: int, size: int) -> NDArray[np.uint16]:
    """
    >>> unpack(np.array([33, 3], np.uint8), 4, 3).tolist()
    [1, 2, 3]
    """
    out = np.empty(size, np.uint16)
    scalar.unpack(data, width, out)
    return out


def in_blocks(x: NDArray[Any], block: int) -> NDArray[Any]:
    """x as rows of `block` values, the last one filled up with zeros, which do not travel.

    >>> in_blocks(np.array([1, 2, 3]), 2).tolist()
    [[1, 2], [3, 0]]
    """
    missing = -x.size % block
    if missing:
        x = np.concatenate([x, np.zeros(missing, x.dtype)])
    return x.reshape(-1, block)


def divide(x: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """x / scale, and 0 where the scale is 0."""
    return np.divide(x, scale, out=np.zeros(np.broadcast_shapes(x.shape, scale.shape), np.float32), where=scale > 0)


def stochastic(x: NDArray[np.float32], draw: Draw) -> NDArray[np.float32]:
    """Rounded to one of the two whole numbers around it, so that the expected value is x."""
    low = np.floor(x)
    return low + (draw(x.size).reshape(x.shape) < x - low)


def round_up_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bfloat16 bits of non-negative numbers, rounded up."""
    return ((x.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """
    >>> from_bf16(np.array([0x3F80], np.uint16)).tolist()
    [1.0]
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
