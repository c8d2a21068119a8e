"""Hashes that every backend computes alike: counter-based random words (splitmix64 and lowbias32), and CRC-32C."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes
from sumwire.kernels.backend import dispatch

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


@dispatch
def crc32c(data: Bytes, start: int = 0) -> int:
    """CRC-32C (Castagnoli) of the bytes, continuing from `start`.

    The bytes are cut into columns that advance together; then neighbors are joined: the left register passes over
    as many zeros as the right one has bytes.
    """
    table = _crc32c_table()
    columns = 1 << max(0, len(data).bit_length() - 8)
    length = len(data) // columns
    head = data[: columns * length].reshape(columns, length)
    register = np.zeros(columns, dtype=np.uint32)
    register[0] = ~np.uint32(start)
    unit = np.uint32(1) << np.arange(32, dtype=np.uint32)
    over = unit.copy()
    for j in range(length):
        register = table[(register ^ head[:, j]) & np.uint32(255)] ^ register >> np.uint32(8)
        over = table[over & np.uint32(255)] ^ over >> np.uint32(8)
    while len(register) > 1:
        register = _apply(over, register[::2]) ^ register[1::2]
        over = _apply(over, over)
    last = int(register[0])
    for byte in data[columns * length :].tolist():
        last = int(table[(last ^ byte) & 255]) ^ last >> 8
    return last ^ 0xFFFFFFFF


def _crc32c_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> np.uint32(1) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table


def _apply(operator: NDArray[np.uint32], registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A linear map over GF(2), given by the images of the 32 bits."""
    out = np.zeros_like(registers)
    for bit in range(32):
        out ^= (registers >> np.uint32(bit) & np.uint32(1)) * operator[bit]
    return out
