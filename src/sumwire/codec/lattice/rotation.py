"""Seeded randomized Hadamard over blocks, in float32.

Flips signs by the seed, then applies the orthonormal Walsh-Hadamard transform to each block: any
block then looks like Gaussian noise of the same norm. The Lattice codec does the same in integers
inside its kernels; this is for other schemes, and to inspect rotated values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.tensors import Tensor, flatten
from sumwire.errors import ConfigError, InputError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.lattice.scheme import MAX_LOG_BLOCK

_MASK = (1 << 64) - 1


def stream_key(seed: int, round_id: int, stream: int, rank: int = 0) -> int:
    """A 32-bit key for one stream of random numbers: splitmix64 over all four."""
    state = 0
    for word in (seed, round_id, stream, rank):
        state = (state ^ word) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 32


def rotate(x: Tensor, *, block: int = 1024, key: int = 0) -> NDArray[np.float32]:
    """Rotate every block; norms are kept up to rounding.

    >>> x = np.zeros(1024, np.float32); x[3] = 32.0
    >>> bool(np.all(np.abs(rotate(x)) == 1.0))
    True
    """
    return _apply(x, block, key, inverse=False)


def unrotate(x: Tensor, *, block: int = 1024, key: int = 0) -> NDArray[np.float32]:
    """Undo `rotate` with the same block and key.

    >>> x = np.arange(10, dtype=np.float32)
    >>> bool(np.allclose(unrotate(rotate(x)), x, atol=1e-5))
    True
    """
    return _apply(x, block, key, inverse=True)


def _apply(x: Tensor, block: int, key: int, *, inverse: bool) -> NDArray[np.float32]:
    flat, shape = flatten(x)
    if flat.dtype != np.float32:
        raise InputError(f"rotation works in float32, not {flat.dtype}: convert the tensor first")
    out = np.empty(flat.size, np.float32)
    kernels.rotate(flat.view(np.float32), log2_block(block), key & 0xFFFFFFFF, inverse, out)
    return out.reshape(shape)


def log2_block(block: int, smallest: int = 1) -> int:
    """log2 of a block size, which must be a power of two within limits."""
    log_block = block.bit_length() - 1
    if block < smallest or block != 1 << log_block or log_block > MAX_LOG_BLOCK:
        raise ConfigError(f"block={block} is not a power of two in {smallest}..2**{MAX_LOG_BLOCK}")
    return log_block
