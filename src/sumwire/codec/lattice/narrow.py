"""Narrow sums of a Lattice: complete sums, quantized again before they are sent to all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Span, Sum
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.codec.tensors import buffer
from sumwire.errors import ConfigError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.lattice.blocks import starts_of
from sumwire.kernels.lattice.narrow_tables import QUANTIZERS
from sumwire.kernels.lattice.scheme import MAX_BITS
from sumwire.kernels.lattice.segments import LEAST_BLOCK, Segments

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice
    from sumwire.codec.lattice.definition import LatticeDefinition
    from sumwire.codec.lattice.parts import LatticeSum

LEAST_SEGMENT, MOST_SEGMENT = 16, 2048
"""Blocks of a segment: enough that widths can follow the sum's energy, few enough to stay in the cache."""

PER_OWNER = 8
"""Segments that each of `workers` owners gets, if there are enough blocks, so that shards are equally long."""

LEAST_BITS = 1
"""Per value of a narrow sum: a block that is dropped would be a bias that no residual makes up for."""

BESIDE = 2
"""Bytes of a block beside its indices: how large its sum is, coarsely and finely."""


def segments_of(terms: LatticeTerms, codec: LatticeDefinition) -> Segments:
    """How narrow sums under these terms are cut: sizes follow from the terms, so that no lengths travel."""
    bits = codec.narrow_bits
    if bits is None:
        raise ConfigError("down_bits='exact' keeps lanes: there are no narrow sums; build the codec with down_bits=5")
    known = terms.segments.get(bits)
    if known is None:
        known = terms.segments[bits] = _cut(terms, codec, bits)
    return known


def _cut(terms: LatticeTerms, codec: LatticeDefinition, down_bits: float) -> Segments:
    sizes, lanes = terms.sizes, terms.layout(codec).lane_bits
    small = (terms.size % LEAST_BLOCK).bit_count()  # blocks, behind all others
    energy = round((1 + codec.energy) / 2 * 256)
    budget = (terms.size - terms.size % LEAST_BLOCK) * round(down_bits * 65536) >> 16
    widths = np.empty(len(sizes), np.uint8)
    kernels.allocate_sums(terms.scales, terms.size, codec.scheme.log_block, lanes, budget, energy, widths)
    step = segment_blocks(codec.workers, len(sizes))
    edges = _edges(terms.size // codec.block, len(sizes), step)
    bits = sizes * widths
    sums = np.add.reduceat(bits, edges[:-1]) if len(bits) else bits
    budgets = sums.copy()
    if small:
        budgets[-1] -= bits[-small:].sum()
    return Segments(step, energy, edges, budgets, starts_of(sums + 7 >> 3))


def segment_blocks(workers: int, blocks: int) -> int:
    """Blocks per segment of a tensor that has this many blocks."""
    share = max(1, blocks // (PER_OWNER * workers))
    return min(max(1 << share.bit_length() - 1, LEAST_SEGMENT), MOST_SEGMENT)


@lru_cache(maxsize=256)
def _edges(whole: int, blocks: int, step: int) -> NDArray[np.int64]:
    """Blocks at which segments begin, and where the last one ends; smaller blocks belong to the last one."""
    starts = np.arange(0, max(whole, 1), step, dtype=np.int64)
    return np.append(starts[: blocks or 0], np.int64(blocks))


def added_error(bits: float, lane_bits: int) -> float:
    """Expected squared error that narrowing adds, over the power of the sum: of Gaussian blocks of equal energy."""
    if bits >= lane_bits:
        return 0.0
    width = min(int(bits), MAX_BITS)
    wider = width + 1 if width < min(MAX_BITS, lane_bits - 1) else lane_bits  # some blocks get that, as budgets allow
    share = (bits - width) / (wider - width)
    return (1 - share) * QUANTIZERS[width].error + share * (0.0 if wider == lane_bits else QUANTIZERS[wider].error)


@dataclass(frozen=True, eq=False)
class NarrowRun:
    """The narrow sum of blocks lo..hi."""

    lo: int
    hi: int
    coarse: Bytes = field(repr=False)
    """rms of each block's mean relative to its scale, in eighths of an octave; 0 if the sum is zero."""
    fine: Bytes = field(repr=False)
    """What makes each block unbiased: by how much its scale differs from that of a Gaussian one."""
    data: Bytes = field(repr=False)
    """Packed indices, segment by segment."""

    @classmethod
    def of(cls, span: Span, data: Bytes) -> NarrowRun:
        """From its bytes on the wire."""
        (lo, hi), blocks = span, span[1] - span[0]
        return cls(lo, hi, data[:blocks], data[blocks : BESIDE * blocks], data[BESIDE * blocks :])

    @property
    def nbytes(self) -> int:
        return BESIDE * (self.hi - self.lo) + len(self.data)


@dataclass(frozen=True, eq=False)
class NarrowSum(Sum):
    """A complete sum at `codec.down_bits` bits per value: decodes like any sum, cannot be added.

    Law: over the rotation, its mean is that of the sum. Of blocks lo..hi; every owner narrows its own run.
    """

    codec: Lattice
    counts: NDArray[np.int32] = field(repr=False)
    """Payloads in each of blocks lo..hi."""
    runs: tuple[NarrowRun, ...] = field(repr=False)
    """In order of their blocks, without gaps."""

    addable: ClassVar[bool] = False

    @property
    def lattice_terms(self) -> LatticeTerms:
        assert isinstance(self.terms, LatticeTerms)
        return self.terms

    @property
    def lo(self) -> int:
        return self.runs[0].lo

    @property
    def hi(self) -> int:
        return self.runs[-1].hi

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)

    def packed(self, out: Bytes | None = None) -> Bytes:
        """`coarse`, `fine` and indices, run by run."""
        out = np.empty(self.nbytes, np.uint8) if out is None else out[: self.nbytes]
        pieces = [piece for run in self.runs for piece in (run.coarse, run.fine, run.data)]
        np.concatenate(pieces, out=out)
        return out

    def part(self, lo: int, hi: int) -> NarrowSum:
        """Blocks lo..hi alone, which must be whole segments, without copying."""
        segments = segments_of(self.lattice_terms, self.codec)
        check_span(segments, (self.lo, self.hi), (lo, hi))
        cuts = [(run, max(lo, run.lo), min(hi, run.hi)) for run in self.runs]
        runs = [_run_part(run, a, b, segments) for run, a, b in cuts if a < b or a == b == lo == hi]
        counts = self.counts[lo - self.lo : hi - self.lo]
        count = int(counts.max()) if len(counts) else self.count
        return NarrowSum(self.codec, self.terms, self.round_id, count, counts, tuple(runs[:1] if lo == hi else runs))

    def narrow(self, bits: float | None = None) -> NarrowSum:
        """Itself: it is narrow already."""
        return self


def _run_part(run: NarrowRun, lo: int, hi: int, segments: Segments) -> NarrowRun:
    begin, a, b = (segments.byte_at(edge) for edge in (run.lo, lo, hi))
    here = slice(lo - run.lo, hi - run.lo)
    return NarrowRun(lo, hi, run.coarse[here], run.fine[here], run.data[a - begin : b - begin])


def check_span(segments: Segments, within: Span, span: Span) -> None:
    """Refuse blocks that are not whole segments."""
    lo, hi = span
    if not within[0] <= lo <= hi <= within[1]:
        raise ConfigError(f"blocks {lo}..{hi} are not within {within[0]}..{within[1]}: choose blocks that this sum has")
    if not segments.has_edges(lo, hi):
        raise ConfigError(
            f"blocks {lo}..{hi} are not whole segments of {segments.blocks} blocks, which a narrow sum is made of: cut "
            "it at `codec.edges`"
        )


def narrow(total: LatticeSum, bits: float | None) -> NarrowSum | LatticeSum:
    """See `LatticeSum.narrow`."""
    codec = total.codec if bits is None else replace(total.codec, down_bits=bits)
    if codec.narrow_bits is None:
        return total
    run = NarrowRun.of((total.lo, total.hi), narrow_packed(total, codec, None))
    return NarrowSum(codec, total.terms, total.round_id, total.count, total.counts, (run,), late=total.late)


def narrow_packed(total: LatticeSum, codec: Lattice, out: Bytes | None) -> Bytes:
    """A narrow sum as it goes on the wire: `coarse`, `fine` and indices."""
    terms, (lo, hi) = total.lattice_terms, (total.lo, total.hi)
    segments = segments_of(terms, codec)
    check_span(segments, (0, len(terms.sizes)), (lo, hi))
    size = BESIDE * (hi - lo) + segments.byte_at(hi) - segments.byte_at(lo)
    packed = buffer(out, size, np.uint8, total.lanes)
    run = NarrowRun.of((lo, hi), packed)
    kernels.narrow(
        codec.scheme,
        terms.size,
        terms.layout(codec).classes,
        terms.scales,
        total.counts,
        total.lanes,
        segments,
        run.coarse,
        run.fine,
        run.data,
        lo,
        hi,
    )
    return packed


def side_by_side(parts: Sequence[NarrowSum]) -> NarrowSum:
    """Narrow sums of neighboring blocks of one round, as one."""
    parts = sorted(parts, key=lambda part: (part.lo, part.hi))
    for before, after in pairwise(parts):
        if before.hi != after.lo:
            raise ConfigError(
                f"narrow sums of blocks {before.lo}..{before.hi} and {after.lo}..{after.hi} do not meet: pass sums of "
                "neighboring blocks, each once"
            )
    counts = np.concatenate([part.counts for part in parts])
    count = max(part.count for part in parts)
    runs = tuple(run for part in parts for run in part.runs)
    return replace(parts[0], count=count, counts=counts, runs=runs)


def read(
    codec: Lattice, terms: LatticeTerms, parts: Sequence[tuple[Span, Bytes]], count: int, round_id: int
) -> NarrowSum:
    """See `Codec.read_sum`."""
    runs = tuple(NarrowRun.of(span, data) for span, data in parts)
    counts = np.full(runs[-1].hi - runs[0].lo, count, np.int32)
    return NarrowSum(codec, terms, round_id, count, counts, runs)


def sizes(codec: Lattice, terms: LatticeTerms, edges: Sequence[int]) -> tuple[int, ...]:
    """See `Codec.sum_sizes`."""
    segments = segments_of(terms, codec)
    at = [segments.byte_at(edge) + BESIDE * edge for edge in edges]
    return tuple(b - a for a, b in pairwise(at))
