"""The randomized Walsh-Hadamard transform: its random patterns and its butterflies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Floats, Ints
from sumwire.kernels.hashing import hash32
from sumwire.kernels.lattice.layout import block_sizes, groups, rows_of, starts_of


def signs(key: int, size: int) -> Ints:
    """+1 or -1 for each coordinate of a block; every block of a round shares them."""
    return 1 - 2 * (hash32(key, np.arange(size)) >> np.uint32(31)).astype(np.int64)


def noise_words(key: int, size: int, blocks: Ints) -> NDArray[np.uint32]:
    """16 random bits per coordinate: a pattern within the block, rotated by an angle per block.

    Each word is uniform over rounds; sharing the pattern makes drawing it one addition per coordinate.
    """
    pattern = hash32(key, np.arange(size))
    return (pattern[None, :] + block_words(key, blocks)[:, None]) & np.uint32(0xFFFF)


def block_words(key: int, blocks: Ints) -> NDArray[np.uint32]:
    """One random word per block."""
    return hash32(key ^ 0xA5A5A5A5, blocks)


def fwht(x: NDArray[Any]) -> NDArray[Any]:
    """Unnormalized Walsh-Hadamard transform of the last axis, whose length is a power of two.

    Stages run from distance 1 upwards, so float results are the same bits everywhere; integer
    results do not depend on the order at all.
    """
    size = x.shape[-1]
    y = x.copy()
    h = 1
    while h < size:
        y = y.reshape(*x.shape[:-1], size // (2 * h), 2, h)
        y = np.stack([y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]], axis=-2)
        h *= 2
    return y.reshape(x.shape)


def rotate(x: Floats, log_block: int, key: int, inverse: bool, out: Floats) -> None:
    """Seeded randomized Hadamard transform of each block in float32: orthonormal up to rounding. out may be x."""
    sizes = block_sizes(len(x), log_block)
    starts = starts_of(sizes)
    for size, _, which in groups(sizes):
        at = rows_of(starts, which, size)
        sign = signs(key, size).astype(np.float32)
        norm = np.float32(1.0 / np.sqrt(np.float64(size)))
        if inverse:
            out[at] = (fwht(x[at]) * norm) * sign
        else:
            out[at] = fwht(x[at] * sign) * norm
