"""Payloads as streams that anything on the path can merge, element by element, without knowing what they mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes
from sumwire.kernels.lattice.streams import packing

Merge = Literal["lookup", "add", "max", "or"]


@dataclass(frozen=True)
class IndexTable:
    """What indices stand for; equal names, equal values."""

    name: str
    bits: int
    """Of an index."""
    values: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Stream:
    """A run of lanes, words or indices, and how it is merged with those of the other workers."""

    merge: Merge
    data: Bytes = field(repr=False)
    lane_bits: int
    """Of what comes back: 8, 16, 32 or 64; of looked-up indices any number, whole lanes in words of 64 bits."""
    unit_bytes: int
    """Of what comes back: each unit counts its payloads, where some may be missing. 0: one count for all."""
    table: IndexTable | None = None
    """Of a stream of indices: the aggregator adds what they stand for."""
    partial: bool = False
    """Whether units may be without some payloads: the codec then decodes each by its own count."""

    @property
    def packing(self) -> tuple[int, int]:
        """Bytes that make a word of what comes back, and words that a byte makes."""
        return (8, 1) if self.table is None else packing(self.table.bits, self.lane_bits)

    @property
    def result_bytes(self) -> int:
        """Bytes that come back."""
        each, words = self.packing
        return len(self.data) if self.table is None else -(-len(self.data) // each) * words * 8


@dataclass(frozen=True, eq=False)
class Merged:
    """What came back of a stream."""

    data: Bytes = field(repr=False)
    lane_bits: int
    members: NDArray[np.uint64]
    """Of each unit: bit w is set if worker w is in it; 0 where nothing usable arrived."""
    counts: NDArray[np.int32]
    """Of each unit: how many payloads are in it."""
