"""What the kernels need to know about a codec: plain numbers and tables, no policy.

A `Scheme` lists one `LatticeSpec` per width class (0..8 bits) and one `TableSpec` per pair of
width class and index width. Blocks refer to them by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BITS = 8
"""Widest index of a coordinate, in bits."""

MAX_LOG_BLOCK = 20
"""Blocks hold at most 2**20 coordinates."""

DEVICE_LOG_BLOCK = 11
"""A program of the GPU kernels has 2**11 coordinates in registers; 2**12 would spill. Larger blocks go in parts."""

PLANE_GROUP = 256
"""Lanes that are bit-packed together: see `pack_planes` in blocks.py."""

TINY_SCALE = np.float32(2.0**-90)
"""Below this scale a block is multiplied by 2**64 first, so that 1/scale stays finite in float32."""

TINY_LIFT = np.float32(2.0**64)
TINY_DROP = np.float32(2.0**-64)

DITHER_BITS = {16: 16, 32: 8}
"""Fraction bits that dither rounds away when a coordinate enters the integer rotation."""

ENERGY_STEPS = 1024
"""Length of `LatticeSpec.corrections`: steps from an empty block to one that has all the energy its terms allow."""


@dataclass(frozen=True)
class LatticeSpec:
    """One width class: the ladder 0..granularity and how coordinates are laid onto it."""

    granularity: int
    fraction_bits: int
    """A lattice step is 2**fraction_bits units of the integer rotation."""
    rotation_bits: int
    """16 or 32: the wrapping integers in which the Walsh-Hadamard transform runs."""
    clip: float
    """t: the range is t * scale."""
    lane_bits: int
    """Width of a sum lane on the wire."""
    shrink: float = 1.0
    """What clamping leaves of a coordinate on average, P(|N(0, 1)| < t): decode divides by it. 1: not corrected."""
    corrections: tuple[int, ...] = (0,) * ENERGY_STEPS
    """(c - 1) * 2**15 by a block's share of its terms' energy: times c, a block shrinks by exactly `shrink`."""

    @property
    def lane_bytes(self) -> int:
        """Width of a sum lane in memory."""
        return 1 if self.lane_bits <= 8 else 2 if self.lane_bits <= 16 else 4

    @property
    def lanes_per_word(self) -> int:
        """Lanes that share a 32-bit word, such that a plain SUM of words adds each lane without carry."""
        most = 32 // self.lane_bits
        room = ((1 << self.lane_bits) - 1) // self.granularity
        # Less `word_bias`, a sum of `room` words must fit int32, because some adders saturate.
        return most if most == 1 or room * (self._full_word(most) + 1) < (1 << 32) - 1 else most - 1

    @property
    def word_bias(self) -> int:
        """Subtracted from every word before it is sent: half of the largest, so that sums use both signs."""
        return self._full_word(self.lanes_per_word) // 2

    def _full_word(self, lanes: int) -> int:
        return sum(self.granularity << self.lane_bits * k for k in range(lanes))

    @property
    def dither_bits(self) -> int:
        return DITHER_BITS[self.rotation_bits]

    @property
    def half_range(self) -> int:
        """The range in units of the integer rotation: coordinates are clamped to +- this."""
        return self.granularity << self.fraction_bits >> 1

    @property
    def encode_gain(self) -> float:
        """Units of the dithered input per (coordinate / scale), before dividing by sqrt(block)."""
        return float(self.granularity << (self.fraction_bits + self.dither_bits)) / (2.0 * self.clip)

    @property
    def decode_gain(self) -> float:
        """Coordinate / scale per lattice step of the transformed sum."""
        return self.clip / (self.granularity * self.shrink)

    @property
    def energy_gain(self) -> float:
        """Steps of `corrections` per squared unit of a block that rotates."""
        return ENERGY_STEPS / (self.encode_gain / (1 << self.dither_bits)) ** 2


@dataclass(frozen=True, eq=False)
class TableSpec:
    """A table of 2**bits lattice values, and its inverse by lattice cell."""

    values: NDArray[np.uint16]
    """values[z] is the lattice value of index z."""
    lower: NDArray[np.uint8]
    """lower[k] is the largest z with values[z] <= k."""
    gap: NDArray[np.uint16]
    """gap[z] = values[z + 1] - values[z]; 1 at the top, where nothing is left to round up."""
    bytes64: NDArray[np.uint8] | None
    """For vector lookups, if they fit: lower, values, gap and values + gap as rows of 64 bytes."""

    @classmethod
    def of(cls, values: tuple[int, ...]) -> TableSpec:
        table = np.array(values, dtype=np.uint16)
        cells = np.arange(int(table[-1]) + 1)
        lower = np.searchsorted(table, cells, side="right") - 1
        gap = np.append(np.diff(table), np.uint16(1))
        rows = None
        if len(lower) <= 64 and len(table) <= 64:
            columns = (lower, table, gap, table + gap)
            rows = np.stack([np.pad(row, (0, 64 - len(row))) for row in columns]).astype(np.uint8)
        return cls(table, lower.astype(np.uint8), gap, rows)


@dataclass(frozen=True, eq=False)
class Scheme:
    """Everything static about a codec family, as the kernels see it."""

    log_block: int
    rotate: bool
    lattices: tuple[LatticeSpec | None, ...]
    """By width class; class 0 is None: nothing is sent."""
    tables: Mapping[tuple[int, int], TableSpec]
    """By (width class, index width)."""
    native: dict[str, Any] = field(default_factory=dict, repr=False)
    """Where the native backend keeps its view of this scheme."""

    @cached_property
    def lane_bytes(self) -> NDArray[np.int64]:
        """By width class: bytes of a sum lane in memory."""
        return np.array([0 if spec is None else spec.lane_bytes for spec in self.lattices], np.int64)

    @cached_property
    def lane_bits(self) -> NDArray[np.uint8]:
        """By width class: width of a sum lane on the wire."""
        return np.array([0 if spec is None else spec.lane_bits for spec in self.lattices], np.uint8)

    def root(self, size: int) -> float:
        """What the transform multiplies norms by."""
        return float(np.sqrt(np.float64(size))) if self.rotate else 1.0

    def square_limit(self, size: int, width: int) -> int:
        """Largest sum of squares of a block in rotation units that its terms allow.

        Dither moves each coordinate by less than one unit, so a block within its terms has a norm of at most
        sqrt(size) * (gain + 1); 0.1 % covers the float32 roundings in between. When nothing rotates, it is the largest
        square of a single coordinate instead.
        """
        spec = self.lattices[width]
        assert spec is not None
        gain = spec.encode_gain / (1 << spec.dither_bits) / self.root(size)
        return int((size if self.rotate else 1) * (gain + 1.0) ** 2 * 1.001) + 1


@dataclass(frozen=True)
class Keys:
    """Keys of the counter-based generator for one worker and round."""

    sign: int
    noise: int
    dither: int
    shift: int
    """Added to every noise word: rank/workers of the full circle when rounding is stratified."""
