"""Frames of narrow sums of a Lattice: how large each block's sum is, coarsely and finely, and packed indices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.narrow import BESIDE, NarrowRun, NarrowSum, segments_of
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.errors import FrameError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.lattice.blocks import BitRows
from sumwire.kernels.lattice.segments import LEAST_BLOCK, Segments
from sumwire.wire import body as rules
from sumwire.wire import lattice
from sumwire.wire.body import Bytes, Counts, Ints
from sumwire.wire.header import Header


def total(header: Header, data: Bytes, codec: Lattice, terms: LatticeTerms) -> NarrowSum:
    """A view of the data, checked that its sender can have written it."""
    if codec.narrow_bits is None:
        raise FrameError("kind is narrow, but sums of this codec travel as lanes (down_bits='exact')")
    sizes = lattice.blocks_of(header, terms)
    segments, (lo, hi) = segments_of(terms, codec), (header.lo, header.hi)
    if not np.isin([lo, hi], segments.edges).all():
        raise FrameError(f"block range {lo}..{hi} is not of whole segments of {segments.blocks} blocks")
    counts, data = rules.read_counts(header, data, codec.headroom)
    which = segments.between(lo, hi)
    need = BESIDE * (hi - lo) + int(segments.bytes_at[which.stop] - segments.bytes_at[which.start])
    if len(data) != need:
        raise FrameError(f"body length: {len(data)} bytes of a narrow sum, the terms imply {need} for these blocks")
    run = NarrowRun.of((lo, hi), data)
    classes = terms.layout(codec).classes
    bad = np.flatnonzero((run.coarse > 0) & ((classes[lo:hi] == 0) | (counts == 0)))
    if len(bad):
        raise FrameError(f"coarse of block {lo + bad[0]} is {run.coarse[bad[0]]}, but nothing was added there")
    widths = np.empty(hi - lo, np.uint8)
    kernels.narrow_widths(codec.scheme, terms.size, classes, terms.scales, run.coarse, segments, widths, lo, hi)
    exact = widths == terms.layout(codec).lane_bits[lo:hi]
    bad = np.flatnonzero((run.fine > 0) & (exact | (widths == 0)))
    if len(bad):
        raise FrameError(
            f"fine of block {lo + bad[0]} is {run.fine[bad[0]]}, but it has no narrow indices: it must be 0"
        )
    _check_padding(run, sizes * widths, segments)
    _check_lanes(run, codec, terms, counts, segments.bit_starts(sizes * widths, lo, hi), exact & (widths > 0))
    return NarrowSum(codec, terms, header.round_id, header.count, counts, (run,))


def _check_padding(run: NarrowRun, bits: Ints, segments: Segments) -> None:
    """Refuse bits behind the last index of a segment."""
    which = segments.between(run.lo, run.hi)
    begin = segments.bytes_at[which.start]
    for segment in range(which.start, which.stop):
        first, last = segments.edges[segment : segment + 2] - run.lo
        used = int(bits[first:last].sum())
        start, stop = (int(at - begin) for at in segments.bytes_at[segment : segment + 2])
        rest = run.data[start + used // 8 : stop]
        if len(rest) and (rest[0] >> used % 8 or rest[1:].any()):
            raise FrameError(f"padding after the last index of blocks {run.lo + first}..{run.lo + last} is not 0")


def _check_lanes(
    run: NarrowRun, codec: Lattice, terms: LatticeTerms, counts: Counts, starts: Ints, exact: NDArray[np.bool_]
) -> None:
    """Refuse lanes that are larger than their count of payloads can give."""
    sizes, layout = terms.sizes[run.lo : run.hi], terms.layout(codec)
    classes = layout.classes[run.lo : run.hi]
    peaks = np.zeros(len(sizes), np.int64)
    large = exact & (sizes >= LEAST_BLOCK)
    # Neighbors whose lanes follow each other are unpacked at once.
    bits = sizes * layout.lane_bits[run.lo : run.hi]
    follows = large[1:] & large[:-1] & (starts[1:] == starts[:-1] + bits[:-1])
    first = np.flatnonzero(large & ~np.append(False, follows))
    last = np.flatnonzero(large & ~np.append(follows, False)) + 1
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        per_block = kernels.lane_bytes(codec.scheme, sizes[a:b], classes[a:b])
        lanes = np.empty(int(per_block.sum()), np.uint8)
        data, (lo, hi) = run.data[starts[a] // 8 :], (run.lo + a, run.lo + b)
        kernels.unpack_lanes(codec.scheme, terms.size, np.ascontiguousarray(classes[a:b]), data, lanes, lo, hi)
        peaks[a:b] = rules.peaks(lanes, sizes[a:b], per_block)
    for block in np.flatnonzero(exact & ~large).tolist():
        start, size, width = int(starts[block]), int(sizes[block]), int(layout.lane_bits[run.lo + block])
        rows = BitRows(run.data[start // 8 : (start + size * width + 7) // 8], np.array([width]), np.array([size]))
        rows.starts = np.array([start % 8])
        peaks[block] = rows.get(np.array([0]), size, width).max()
    granularity = np.array([0 if spec is None else spec.granularity for spec in codec.scheme.lattices], np.int64)
    limits = counts * granularity[classes]
    over = np.flatnonzero(peaks > limits)
    if len(over):
        block, limit = over[0], limits[over[0]]
        raise FrameError(
            f"a lane of block {run.lo + block} is over {limit}, the most that {counts[block]} payloads add up to"
        )
