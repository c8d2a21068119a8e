"""The definition of the scalar quantizers of mean estimation, in NumPy: the judge of the native ones.

Arrays begin with a block, and are cut into blocks as in lattice/blocks.py; arrays that hold one element per block
follow that order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes, Doubles, Floats, fold16
from sumwire.kernels.hashing import hash32
from sumwire.kernels.lattice.blocks import block_sizes

Indices = NDArray[np.uint16]
Noise = NDArray[np.uint32]


def summarize(x: Floats, log_block: int, low: Floats, high: Floats, squares: Doubles) -> None:
    """Smallest and largest coordinate and sum of squares of every block.

    Squares are exact in float64 and cannot overflow there, so their sum is finite exactly when the block is.
    """
    for b, block in enumerate(_blocks(x, log_block)):
        low[b], high[b] = block.min() + np.float32(0), block.max() + np.float32(0)  # -0 becomes 0
        squares[b] = fold16(block.astype(np.float64) ** 2)


def quantize(
    x: Floats,
    log_block: int,
    low: Doubles,
    gain: Doubles,
    levels: int,
    key: int,
    first: int,
    noise: Noise | None,
    out: Indices,
) -> None:
    """floor((x - low) * gain + noise / 2**32), clamped below `levels`.

    Without noise, words are drawn from the key, for counters from `first` on, modulo 2**32.
    """
    words = hash32(key, np.arange(first, first + len(x))) if noise is None else noise
    sizes = block_sizes(len(x), log_block)
    above = (x.astype(np.float64) - np.repeat(low, sizes)) * np.repeat(gain, sizes)
    out[:] = np.minimum((above + words.astype(np.float64) * 2.0**-32).astype(np.int64), levels - 1)


def dequantize(index: Indices, log_block: int, low: Doubles, step: Doubles, out: Floats) -> None:
    """low + index * step, in float64, rounded once."""
    sizes = block_sizes(len(index), log_block)
    out[:] = np.repeat(low, sizes) + index.astype(np.float64) * np.repeat(step, sizes)


def nearest(
    x: Floats, log_block: int, gain: Floats, edges: Floats, centers: Floats, out: Indices, dots: Doubles
) -> None:
    """The number of edges below x * gain, as index; and for every block the sum of x * centers[index]."""
    scaled = x * np.repeat(gain, block_sizes(len(x), log_block))
    out[:] = np.searchsorted(edges, scaled, side="left")
    products = x.astype(np.float64) * centers[out].astype(np.float64)
    for b, block in enumerate(_blocks(products, log_block)):
        dots[b] = fold16(block)


def look_up(index: Indices, log_block: int, scale: Floats, centers: Floats, out: Floats) -> None:
    """centers[index] * scale."""
    out[:] = centers[index] * np.repeat(scale, block_sizes(len(index), log_block))


def pack(index: Indices, width: int, out: Bytes) -> None:
    """Value i at bits i * width .. of the stream, least significant bit first."""
    bits = index[:, None] >> np.arange(width, dtype=np.uint16) & np.uint16(1)
    out[:] = np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")


def unpack(data: Bytes, width: int, out: Indices) -> None:
    """Inverse of `pack`."""
    bits = np.unpackbits(data, count=len(out) * width, bitorder="little").reshape(len(out), width)
    out[:] = bits.astype(np.int64) @ (1 << np.arange(width))


def _blocks(x: NDArray[Any], log_block: int) -> list[NDArray[Any]]:
    return np.split(x, np.cumsum(block_sizes(len(x), log_block))[:-1]) if len(x) else []
