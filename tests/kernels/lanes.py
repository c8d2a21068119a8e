"""Lanes as words of 64 bits hold them, without the code that is tested."""

from __future__ import annotations

import numpy as np


def packed_lanes(lanes: np.ndarray, width: int, bits: int) -> np.ndarray:
    """As many in each 64-bit word as docs/in-network.md says, one after another from the lowest bits on."""
    per_byte = 8 // width
    per_word = min(64 // (per_byte * bits), 8) * per_byte
    per_word = per_word or next(n for n in (4, 2, 1) if n < per_byte and n * bits <= 64)
    rows = np.zeros((-(-len(lanes) // per_word), per_word), np.uint64)
    rows.reshape(-1)[: len(lanes)] = lanes
    return (rows << np.arange(per_word, dtype=np.uint64) * np.uint64(bits)).sum(1, dtype=np.uint64).view(np.uint8)
