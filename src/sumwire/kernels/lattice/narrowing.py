"""Narrow sums: the definition of the kernels that quantize a complete sum again, and decode it.

A block of complete lanes is Gaussian after the rotation, with a scale that its owner can measure. So the owner maps
each centered lane to an index of 1 to 8 bits by the best scalar quantizer, without undoing the rotation. Every block
has two bytes beside its indices: `coarse`, the rms of its mean relative to its scale in eighths of an octave, or 0 if
the sum is zero; and `fine`, which makes the result unbiased. A block whose width is that of its lanes keeps them.

Blocks are grouped in *segments*, whose sizes follow from the terms alone; within a segment, widths follow the energy of
the sum. What belongs to a block range holds blocks lo..hi, both at edges of segments; scales and classes belong to the
whole tensor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes, Doubles, Floats, Ints
from sumwire.kernels.hashing import hash32
from sumwire.kernels.lattice.blocks import BitRows, block_sizes, groups, rows_of, starts_of
from sumwire.kernels.lattice.lanes import get_lanes, lane_bytes
from sumwire.kernels.lattice.narrow_tables import CELLS, MAX_MAGNITUDE, QUANTIZERS, Quantizer
from sumwire.kernels.lattice.reference import mean_of_lanes, to_floats
from sumwire.kernels.lattice.scheme import LatticeSpec, Scheme
from sumwire.kernels.lattice.segments import Segments, coarse_of, coarse_value, fine_of, fine_value, narrow_widths

_SHIFTED = 20
"""Centered lanes are used with at most this many bits, so that sums of products fit 64."""

_TIES, _TIES_PERIOD = 0x71E5, 4096


# Narrow


def narrow(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    scales: Floats,
    counts: NDArray[np.int32],
    lanes: Bytes,
    segments: Segments,
    coarse: Bytes,
    fine: Bytes,
    data: Bytes,
    lo: int,
    hi: int,
) -> None:
    """From the sum lanes of blocks lo..hi to `coarse`, `fine` and packed indices. Blocks of count 0 are zero."""
    sizes, here = block_sizes(size, scheme.log_block)[lo:hi], classes[lo:hi]
    starts = starts_of(lane_bytes(scheme, sizes, here))
    present = (counts > 0).astype(np.uint8)
    coarse[:] = fine[:] = data[:] = 0
    for block, (cls, any_), which in groups(sizes, here, present):
        spec = scheme.lattices[cls]
        if spec is not None and any_:
            total = get_lanes(lanes, starts, which, block, spec.lane_bytes)
            coarse[which] = _Centered(spec, total, counts[which]).coarse
    widths = np.empty(hi - lo, np.uint8)
    narrow_widths(scheme, size, classes, scales, coarse, segments, widths, lo, hi)
    rows = _bit_rows(data, widths, sizes, segments, lo, hi)
    for block, (cls, width), which in groups(sizes, here, widths):
        spec = scheme.lattices[cls]
        if spec is None or not width:
            continue
        total = get_lanes(lanes, starts, which, block, spec.lane_bytes)
        if width < spec.lane_bits:
            total, fine[which] = _Centered(spec, total, counts[which]).quantize(QUANTIZERS[width])
        rows.put(which, total, width)
    rows.flush()


def _bit_rows(data: Bytes, widths: Bytes, sizes: Ints, segments: Segments, lo: int, hi: int) -> BitRows:
    """Indices of blocks lo..hi; what a segment does not use is 0 at its end."""
    rows = BitRows(data, widths, sizes)
    rows.starts = segments.bit_starts(sizes * widths, lo, hi)
    return rows


class _Centered:
    """Blocks of one size and class around 0, as integers of at most 20 bits, with their rms."""

    def __init__(self, spec: LatticeSpec, total: Ints, counts: NDArray[np.int32]) -> None:
        self.spec, self.counts = spec, counts.astype(np.int64)
        self.top = self.counts * spec.granularity
        self.shift = np.maximum(_bit_length(self.top) - _SHIFTED, 0)
        self.lanes = 2 * total - self.top[:, None] >> self.shift[:, None]
        self.squares = np.square(self.lanes).sum(axis=1)
        self.rms: Doubles = np.sqrt(self.squares.astype(np.float64) / total.shape[1])

    @property
    def coarse(self) -> Bytes:
        relative = np.ldexp(self.rms, self.shift) * (self.spec.decode_gain / self.counts.astype(np.float64))
        return np.where(self.squares > 0, coarse_of(relative.astype(np.float32)), np.uint8(0))

    def quantize(self, quantizer: Quantizer) -> tuple[Ints, Bytes]:
        """Indices, and `fine` of each block. All have an rms above 0."""
        magnitude = self._magnitudes(quantizer)
        size, half = self.lanes.shape[1], 1 << quantizer.width - 1
        # Zeros to both sides: all to one would put the error of a block into one coordinate.
        ties = (hash32(_TIES, np.arange(size) % _TIES_PERIOD) & np.uint32(1)).astype(np.int64)
        index = half + np.where(ties > self.lanes, -1 - magnitude, magnitude)
        product = (np.abs(self.lanes) * quantizer.level_array[magnitude]).sum(axis=1)
        value = coarse_value(self.coarse).astype(np.float64) * (self.counts / self.spec.decode_gain)
        ratio = np.ldexp(self.squares.astype(np.float64), self.shift) * quantizer.unit
        return index, fine_of(ratio / (product.astype(np.float64) * value))

    def _magnitudes(self, quantizer: Quantizer) -> Ints:
        log = np.frexp(self.rms)[1] - 1
        room = 15 - _bit_length(self.top)
        exponent = 11 - log
        if quantizer.by_cell:
            exponent = np.where(room >= 0, np.maximum(room, 7 - log), exponent)
        exponent = np.minimum(exponent, 14)  # a block of few lanes other than 0: these are beyond the last level
        up, down = np.maximum(exponent, 0)[:, None], np.maximum(-exponent, 0)[:, None]
        scaled = np.minimum(np.abs(self.lanes) >> down, MAX_MAGNITUDE >> up) << up
        inverse = 1.0 / np.ldexp(self.rms, exponent)
        if quantizer.by_cell:
            gain = _gain(quantizer.density * 65536.0 * inverse)
            cell = np.minimum(scaled * gain[:, None] >> 16, CELLS - 1)
            found: Ints = quantizer.magnitudes[cell].astype(np.int64)
            return found
        lines = [
            (scaled * _gain(slope * 16.0 * inverse)[:, None] >> 16) + offset
            for slope, offset in zip(quantizer.slopes, quantizer.offsets, strict=True)
        ]
        last = (1 << quantizer.width - 1) - 1
        index: Ints = np.minimum(np.minimum.reduce(lines) >> quantizer.fraction_bits, last)
        return index


def _bit_length(values: Ints) -> NDArray[np.int32]:
    return np.frexp(values.astype(np.float64))[1]


def _gain(gain: Doubles) -> Ints:
    return np.minimum(np.rint(gain), 65535.0).astype(np.int64)


# Decode


def decode_narrow(
    scheme: Scheme,
    coarse: Bytes,
    fine: Bytes,
    widths: Bytes,
    data: Bytes,
    segments: Segments,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: Floats,
    lo: int,
    hi: int,
) -> None:
    """The mean of blocks lo..hi; counts and out belong to the whole tensor, too. Blocks of width 0 become 0."""
    sizes = block_sizes(len(out), scheme.log_block)
    starts = starts_of(sizes)
    rows = _bit_rows(data, widths, sizes[lo:hi], segments, lo, hi)
    for size, (cls, width), which in groups(sizes[lo:hi], classes[lo:hi], widths):
        blocks = which + lo
        at = rows_of(starts, blocks, size)
        spec = scheme.lattices[cls]
        if spec is None or not width:
            out[at] = 0
            continue
        index, count = rows.get(which, size, width), counts[blocks].astype(np.int64)
        if width == spec.lane_bits:
            out[at] = mean_of_lanes(scheme, spec, index, count, scales[blocks], sign_key)
            continue
        quantizer = QUANTIZERS[width]
        levels = np.concatenate([-quantizer.level_array[::-1], quantizer.level_array])
        unit = coarse_value(coarse[which]) * fine_value(fine[which]) / quantizer.unit
        out[at] = to_floats(scheme, levels[index], unit, 1, scales[blocks], sign_key)
