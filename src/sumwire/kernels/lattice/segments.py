"""Widths of narrow sums (see narrowing.py): sizes follow from the terms alone, widths from the energy of the sum."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from sumwire.kernels.arrays import Bytes, Doubles, Floats, Ints
from sumwire.kernels.lattice.blocks import block_sizes, starts_of
from sumwire.kernels.lattice.lanes import lane_bits
from sumwire.kernels.lattice.scheme import MAX_BITS, Scheme

LEAST_BLOCK = 64
"""Smaller blocks keep their lanes: too few coordinates to be Gaussian."""

_WIDEST = 33
"""Beyond every lane."""

_ONE = 231
"""`coarse` of a block whose mean has the rms of its scale."""

_ABOUT_ONE, _OVER_ONE, _SPIKY = 24, 152, 176
"""`fine` of 0.875, 1.125 and 1.5, where its steps change."""

_OCTAVE = np.array([2.0 ** (j / 8) for j in range(8)], np.float32)

MANTISSAS = np.array([371395, 1164243, 2028850, 2971711, 3999908, 5121164, 6343903, 7677309], np.uint32)
"""Mantissa bits of 2**((j + 0.5) / 8): where the next eighth of an octave is nearer."""


@dataclass(frozen=True, eq=False)
class Segments:
    """How the narrow sum of a tensor is cut: what everybody derives from the codec and the terms."""

    blocks: int
    """In each; the last one has the tensor's last, smaller blocks too."""
    energy: int
    """Exponent of the energy that widths follow, in 256ths."""
    edges: Ints
    """Blocks at which segments begin; and where the last one ends."""
    budgets: Ints
    """Bits of each segment's blocks that are not too small to be narrowed."""
    bytes_at: Ints
    """Where the indices of each segment begin; and where the last ones end."""

    def between(self, lo: int, hi: int) -> slice:
        """The segments of blocks lo..hi, which lie at edges."""
        return slice(bisect_left(self._starts, lo), bisect_left(self._starts, hi))

    def byte_at(self, block: int) -> int:
        """Where the indices of the segment that begins at this block begin; or where the last ones end."""
        return int(self.bytes_at[bisect_left(self._starts, block)])

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Of the three arrays."""
        return tuple(array.ctypes.data for array in (self.edges, self.budgets, self.bytes_at))

    def has_edges(self, *blocks: int) -> bool:
        """Whether a segment begins, or the last one ends, at each of these blocks."""
        starts = self._starts
        found = ((bisect_left(starts, block), block) for block in blocks)
        return all(at < len(starts) and starts[at] == block for at, block in found)

    @cached_property
    def _starts(self) -> list[int]:
        found: list[int] = self.edges.tolist()
        return found

    def bit_starts(self, bits: Ints, lo: int, hi: int) -> Ints:
        """Where each of blocks lo..hi begins in their packed indices, given its bits."""
        starts = starts_of(bits)[:-1]
        which = self.between(lo, hi)
        begin = 8 * (self.bytes_at[which] - self.bytes_at[which.start])
        lengths = np.diff(self.edges[which.start : which.stop + 1])
        moved: Ints = starts + np.repeat(begin - starts[self.edges[which] - lo], lengths)
        return moved


# Widths


def allocate_sums(
    scales: Floats, size: int, log_block: int, lanes: Bytes, budget: int, energy: int, out: Bytes
) -> None:
    """Width of each block so that sum(width * block size) <= budget bits, but for blocks too small to be narrowed.

    As `reference.allocate`, with a floor of 1, and one more width: that of the block's lanes, which must be above 0
    or the block gets nothing. A block whose share reaches the width of its lanes keeps them, be they narrower or wider
    than 8 bits; small blocks always do.
    """
    _choose_widths(scales, block_sizes(size, log_block), lanes, budget, energy, out)


def _choose_widths(scales: Floats, sizes: Ints, lanes: Bytes, budget: int, energy: int, out: Bytes) -> None:
    level = (scales.view(np.uint32) >> np.uint32(15)).astype(np.int64) * energy
    exact = lanes.astype(np.int64)
    small = sizes < LEAST_BLOCK
    cost = np.where(small, 0, sizes)

    def at(c: int) -> Ints:
        wish = np.maximum(level + c >> 16, 1)
        return np.where((wish >= exact) | small, exact, np.minimum(wish, MAX_BITS))

    low, high = -int(level.max(initial=0)), _WIDEST << 16
    while low < high:  # the largest c that fits
        middle = (low + high + 1) // 2
        if int((at(middle) * cost).sum()) <= budget:
            low = middle
        else:
            high = middle - 1
    width, wider = at(low), at(low + 1)
    left = budget - int((width * cost).sum())
    for i in np.flatnonzero(wider > width):
        more = int((wider[i] - width[i]) * cost[i])
        if more <= left:
            width[i] = wider[i]
            left -= more
    out[:] = width


def narrow_widths(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    scales: Floats,
    coarse: Bytes,
    segments: Segments,
    out: Bytes,
    lo: int,
    hi: int,
) -> None:
    """Width of each block: within a segment they follow the energy of the sum."""
    sizes = block_sizes(size, scheme.log_block)
    lanes = np.where(coarse > 0, lane_bits(scheme, classes[lo:hi]), np.uint8(0))
    energies = scales[lo:hi] * coarse_value(coarse)
    which = segments.between(lo, hi)
    for (a, b), budget in zip(
        pairwise(segments.edges[which.start : which.stop + 1]), segments.budgets[which], strict=True
    ):
        here = slice(a - lo, b - lo)
        _choose_widths(energies[here], sizes[a:b], lanes[here], int(budget), segments.energy, out[here])


def coarse_value(coarse: Bytes) -> Floats:
    """rms relative to the scale; 0 for 0."""
    eighths = coarse.astype(np.int64) - _ONE
    value: Floats = np.ldexp(_OCTAVE[eighths & 7], (eighths >> 3).astype(np.int32))
    return np.where(coarse > 0, value, np.float32(0))


def coarse_of(value: Floats) -> Bytes:
    """The nearest eighth of an octave, by the float's own bits."""
    bits = value.view(np.uint32)
    nearest = np.searchsorted(MANTISSAS, bits & np.uint32(0x7FFFFF), side="right")
    eighths = 8 * ((bits >> np.uint32(23)).astype(np.int64) - 127) + nearest
    coarse: Bytes = np.clip(_ONE + eighths, 1, 255).astype(np.uint8)
    return coarse


def fine_value(fine: Bytes) -> Doubles:
    """By how much a block's scale differs from that of a Gaussian one: in 64ths from 0.5 to 1.5, in 512ths around 1,
    and from 1.5 on, for sums of few lanes other than 0, a float of four fraction bits."""
    k = fine.astype(np.int64)
    beyond = k - _SPIKY
    large = 1.5 * np.ldexp(1.0 + (beyond & 15) / 16.0, beyond >> 4)
    near = np.where(k < _ABOUT_ONE, 0.5 + k / 64.0, 0.875 + (k - _ABOUT_ONE) / 512.0)
    return np.where(k < _OVER_ONE, near, np.where(beyond < 0, 1.125 + (k - _OVER_ONE) / 64.0, large))


def fine_of(ratio: Doubles) -> Bytes:
    """The nearest `fine`."""
    mantissa, exponent = np.frexp(ratio / 1.5)
    large = _SPIKY + 16.0 * (exponent - 1) + np.rint((2.0 * mantissa - 1.0) * 16.0)
    usual = np.where(
        ratio < 1.125,
        np.where(ratio < 0.875, np.rint((ratio - 0.5) * 64.0), _ABOUT_ONE + np.rint((ratio - 0.875) * 512.0)),
        _OVER_ONE + np.rint((ratio - 1.125) * 64.0),
    )
    found: Bytes = np.clip(np.where(ratio < 1.5, usual, large), 0.0, 255.0).astype(np.uint8)
    return found
