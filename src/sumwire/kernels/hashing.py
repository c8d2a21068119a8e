"""Counter-based random words, so that every backend draws the same: splitmix64 and lowbias32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN32 = 0x9E3779B9


def mix(value: int) -> int:
    """splitmix64's finalizer, of a plain integer.

    >>> hex(mix(1))
    '0x5692161d100b05e5'
    """
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def hash64(key: int, counter: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """splitmix64: one random word per counter."""
    h = (counter.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
    h = (h ^ h >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ h >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return h ^ h >> np.uint64(31)


def hash32(key: int, counter: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """lowbias32 of a Weyl sequence that starts at key: one random word per counter."""
    with np.errstate(over="ignore"):
        h = counter.astype(np.uint32) * np.uint32(_GOLDEN32) + np.uint32(key)
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x7FEB352D)
        h ^= h >> np.uint32(15)
        h *= np.uint32(0x846CA68B)
        h ^= h >> np.uint32(16)
    return h
