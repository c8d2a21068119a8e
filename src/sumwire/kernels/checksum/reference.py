"""CRC-32C in NumPy: the definition that the native implementation must equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes


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
