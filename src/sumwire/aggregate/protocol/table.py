"""Tables that an aggregator in the network looks indices up in."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import ConfigError, HeadroomError
from sumwire.kernels.lattice.streams import lanes_per_word, packing

BITS = (1, 2, 4, 8)
MAX_LANE = 32


@dataclass(frozen=True, eq=False)
class LookupTable:
    """2**bits values, and the width of the lanes that they are added in.

    >>> table = LookupTable.of(4, 6, list(range(16)), headroom=4)
    >>> [oct(word) for word in table.spread[0x95].tolist()]      # what a byte of two indices gives, lowest bits first
    ['0o1105']
    """

    bits: int
    lane: int
    values: NDArray[np.uint32]

    @classmethod
    def of(cls, bits: Any, lane: Any, values: Any, *, headroom: int) -> LookupTable:
        """A table from numbers that somebody sent."""
        if type(bits) is not int or bits not in BITS or type(lane) is not int or not 1 <= lane <= MAX_LANE:
            raise ConfigError(f"indices of {bits} bits and lanes of {lane}: they have {BITS} and 1 to {MAX_LANE}")
        if not isinstance(values, list) or len(values) != 1 << bits or not all(type(v) is int for v in values):
            raise ConfigError(f"{bits}-bit indices need a list of {1 << bits} integers")
        if values[0] < 0 or any(a > b for a, b in pairwise(values)):
            raise ConfigError("values must ascend from 0 or more")
        if values[-1] * headroom >= 1 << lane:
            raise HeadroomError(
                f"{headroom} payloads of up to {values[-1]} do not fit lanes of {lane} bits: use wider lanes, or "
                "fewer bits per index"
            )
        return cls(bits, lane, np.array(values, np.uint32))

    @property
    def bytes_per_word(self) -> int:
        """Payload bytes that make a word of the result; 1 if a byte makes several."""
        return packing(self.bits, self.lane)[0]

    @property
    def words_per_byte(self) -> int:
        """Words of the result that a payload byte makes; 1 if a word needs several."""
        return packing(self.bits, self.lane)[1]

    @property
    def lanes_per_word(self) -> int:
        return lanes_per_word(self.bits, self.lane)

    @property
    def spread(self) -> NDArray[np.uint64]:
        """What each of the 256 payload bytes gives: a row of words, the first index in the lowest bits."""
        per_word = min(8 // self.bits, self.lanes_per_word)
        index = np.arange(256)[:, None] >> np.arange(0, 8, self.bits) & (1 << self.bits) - 1
        lanes = self.values[index].astype(np.uint64).reshape(256, -1, per_word)
        words: NDArray[np.uint64] = (lanes << np.arange(per_word, dtype=np.uint64) * np.uint64(self.lane)).sum(-1)
        return words
