"""The Lattice codec's Payload and Sum: lanes, which blocks of which round they belong to, and how they add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Payload, Span, Sum, Terms
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.codec.streams import Stream
from sumwire.codec.tensors import buffer
from sumwire.errors import ConfigError, HeadroomError
from sumwire.kernels import lattice as kernels

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice


class _Spanned:
    """A payload or sum that covers blocks lo..hi of a tensor."""

    terms: Terms
    lo: int
    hi: int

    @property
    def lattice_terms(self) -> LatticeTerms:
        assert isinstance(self.terms, LatticeTerms)
        return self.terms

    def _check_span(self, lo: int, hi: int) -> None:
        sizes = self.lattice_terms.sizes
        if not self.lo <= lo <= hi <= self.hi:
            raise ConfigError(f"blocks {lo}..{hi} are not within {self.lo}..{self.hi}")
        # Blocks of fewer than 8 coordinates share bytes with their neighbors.
        if any(0 < edge < len(sizes) and sizes[edge] < 8 and sizes[edge - 1] < 8 for edge in (lo, hi)):
            raise ConfigError(f"a part may not begin or end between the last blocks ({lo}..{hi}): keep them together")


@dataclass(frozen=True, eq=False)
class LatticePayload(_Spanned, Payload):
    """Packed indices of blocks lo..hi."""

    codec: Lattice
    data: Bytes = field(repr=False)
    widths: Bytes = field(repr=False)
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def part(self, lo: int, hi: int) -> LatticePayload:
        """The payload of blocks lo..hi alone, without copying."""
        self._check_span(lo, hi)
        bits_at = self.lattice_terms.layout(self.codec).bits_at
        start, stop = ((int(bits_at[edge] - bits_at[self.lo]) + 7) // 8 for edge in (lo, hi))
        own = self.widths[lo - self.lo : hi - self.lo]
        return LatticePayload(self.codec, self.terms, self.round_id, self.rank, self.data[start:stop], own, lo, hi)

    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        return self.data, self.codec.payload_sizes(self.terms, edges)

    def streams(self, *, by_unit: bool) -> list[Stream]:
        """Indices of whole blocks, width class by width class; lanes of the smaller blocks behind them."""
        from sumwire.codec.lattice import network  # which is made of this

        return network.streams(self, by_unit)

    def summands(self, out: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """Words that hold several lanes each, biased so that no partial sum overflows."""
        terms, scheme = self.lattice_terms, self.codec.scheme
        classes = terms.layout(self.codec).classes
        own = self.codec.add([self])
        size = int(kernels.words(scheme, terms.sizes, classes).sum())
        words = np.empty(size, np.int32) if out is None else out[:size]
        kernels.pack_words(scheme, terms.size, classes, own.lanes, words, 0, len(terms.sizes))
        return words


@dataclass(frozen=True, eq=False)
class LatticeSum(_Spanned, Sum):
    """Lanes of blocks lo..hi, in memory as bytes, words or double words, and payloads per block."""

    codec: Lattice
    lanes: Bytes = field(repr=False)
    counts: NDArray[np.int32] = field(repr=False)
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        return kernels.payload_bytes(self.lattice_terms.sizes[self.lo : self.hi], self._lane_bits())

    @property
    def storage(self) -> Bytes:
        return self.lanes

    def _classes(self) -> Bytes:
        classes = self.lattice_terms.layout(self.codec).classes[self.lo : self.hi]
        return np.ascontiguousarray(classes)

    def _lane_bits(self) -> Bytes:
        return kernels.lane_bits(self.codec.scheme, self._classes())

    def part(self, lo: int, hi: int) -> LatticeSum:
        """The sum of blocks lo..hi alone, without copying."""
        self._check_span(lo, hi)
        counts = self.counts[lo - self.lo : hi - self.lo]
        count = int(counts.max()) if len(counts) else self.count
        lanes_at = self.lattice_terms.layout(self.codec).lanes_at
        lanes = self.lanes[lanes_at[lo] - lanes_at[self.lo] : lanes_at[hi] - lanes_at[self.lo]]
        return LatticeSum(self.codec, self.terms, self.round_id, count, lanes, counts, lo, hi)

    def whole(self) -> LatticeSum:
        """This sum over all blocks of the tensor; those it does not cover have count 0."""
        blocks = len(self.lattice_terms.sizes)
        if (self.lo, self.hi) == (0, blocks):
            return self
        nothing = LatticeSum(
            self.codec, self.terms, self.round_id, 0, self.lanes[:0], np.zeros(0, np.int32), self.lo, self.lo
        )
        edges = [self, _empty(nothing, 0), _empty(nothing, blocks)]
        return self.codec._add(edges, None)

    def packed(self, out: Bytes | None = None) -> Bytes:
        """The lanes as they go on the wire, each as wide as it must be."""
        out = buffer(out, self.nbytes, np.uint8, self.lanes)
        scheme, size = self.codec.scheme, self.lattice_terms.size
        kernels.pack_lanes(scheme, size, self._classes(), self.lanes, out, self.lo, self.hi)
        return out

    def narrow(self, bits: float | None = None) -> Any:
        """This sum at fewer bits per value: once nothing more is added to it, it may travel so.

        Parameters
        ----------
        bits : float, optional
            Bits per value on average, beside 16 per block. Default: the codec's `down_bits`; where those are "exact",
            the sum stays as it is.

        Raises
        ------
        ConfigError
            The sum does not cover whole segments, at which `Lattice.edges` cuts.
        """
        from sumwire.codec.lattice.narrow import narrow  # which is made of this

        return narrow(self, bits)

    def narrow_packed(self, out: Bytes | None = None) -> Bytes:
        from sumwire.codec.lattice.narrow import narrow_packed  # which is made of this

        return self.packed(out) if self.codec.narrow_bits is None else narrow_packed(self, self.codec, out)


@dataclass(frozen=True, eq=False)
class PackedLatticeSum(Sum):
    """A whole sum as its owners sent it: packed lanes, run by run. Decodes without unpacking."""

    codec: Lattice
    parts: tuple[tuple[Span, Bytes], ...] = field(repr=False)

    @property
    def lattice_terms(self) -> LatticeTerms:
        assert isinstance(self.terms, LatticeTerms)
        return self.terms

    @property
    def nbytes(self) -> int:
        return sum(len(data) for _, data in self.parts)

    def packed(self, out: Bytes | None = None) -> Bytes:
        return np.concatenate([np.empty(0, np.uint8), *(data for _, data in self.parts)])

    def part(self, lo: int, hi: int) -> Any:
        return self.unpacked().part(lo, hi)

    def narrow(self, bits: float | None = None) -> Any:
        return self.unpacked().narrow(bits)

    def unpacked(self) -> LatticeSum:
        """The same with its lanes in memory, as adding needs them."""
        terms = self.lattice_terms
        layout = terms.layout(self.codec)
        lanes_at, lanes = layout.lanes_at, np.empty(int(layout.lanes_at[-1]), np.uint8)
        for (lo, hi), data in self.parts:
            here, classes = lanes[lanes_at[lo] : lanes_at[hi]], np.ascontiguousarray(layout.classes[lo:hi])
            kernels.unpack_lanes(self.codec.scheme, terms.size, classes, data, here, lo, hi)
        blocks = len(layout.classes)
        counts = np.full(blocks, self.count, np.int32)
        return LatticeSum(self.codec, terms, self.round_id, self.count, lanes, counts, 0, blocks, late=self.late)


def _empty(like: LatticeSum, block: int) -> LatticeSum:
    """A sum of no blocks at one place: extends what it is added to up to there."""
    return LatticeSum(like.codec, like.terms, like.round_id, 0, like.lanes, like.counts, block, block)


Part = LatticePayload | LatticeSum


def add_parts(codec: Lattice, addends: Sequence[Part | PackedLatticeSum], out: Bytes | None) -> LatticeSum:
    """One pass over the lanes of all blocks that any of them covers."""
    # Payloads first in every check: `isinstance` is only fast where it is true, as these are abstract classes.
    parts = [part if isinstance(part, LatticePayload | LatticeSum) else part.unpacked() for part in addends]
    terms = parts[0].lattice_terms
    spans = _by_span(parts)
    lo, hi = min(a for a, _ in spans), max(b for _, b in spans)
    counts = _counts(parts, lo, hi)
    most = int(counts.max()) if len(counts) else sum(part.count for part in parts)
    if most > codec.headroom:
        raise HeadroomError(
            f"cannot add payload {codec.headroom + 1}: {codec.sum_bits}-bit lanes hold {codec.headroom}; "
            f"build the codec with workers>={most}"
        )
    equal = all(part.codec.bits == codec.family_bits for part in parts)
    scheme = codec.scheme_of_family(equal)
    layout = terms.layout(codec)
    classes, lanes_at = layout.classes, layout.lanes_at
    inputs = (part.data if isinstance(part, LatticePayload) else part.lanes for part in parts)
    lanes = buffer(out, int(lanes_at[hi] - lanes_at[lo]), np.uint8, *inputs)
    fresh = all(before[1] == after[0] for before, after in pairwise(sorted(spans)))  # side by side, without holes
    if not fresh:
        lanes[:] = 0
    for (a, b), group in spans.items():
        here = lanes[lanes_at[a] - lanes_at[lo] : lanes_at[b] - lanes_at[lo]]
        payloads = [(p.data, p.widths) for p in group if isinstance(p, LatticePayload)]
        sums = [p.lanes for p in group if not isinstance(p, LatticePayload)]
        if payloads:
            kernels.add(scheme, terms.size, classes[a:b], here, payloads, fresh, a, b)
        elif fresh:
            here[:] = sums.pop()
        for summed in sums:
            kernels.add_lanes(scheme, terms.size, classes[a:b], here, summed, a, b)
    return LatticeSum(codec, terms, parts[0].round_id, most, lanes, counts, lo, hi)


def _counts(parts: Sequence[Part], lo: int, hi: int) -> NDArray[np.int32]:
    """Payloads in each of blocks lo..hi."""
    if all(isinstance(part, LatticePayload) and (part.lo, part.hi) == (lo, hi) for part in parts):
        return np.full(hi - lo, len(parts), np.int32)
    counts = np.zeros(hi - lo, np.int32)
    for part in parts:
        counts[part.lo - lo : part.hi - lo] += 1 if isinstance(part, LatticePayload) else part.counts
    return counts


def _by_span(parts: Sequence[Part]) -> dict[Span, list[Part]]:
    groups: dict[Span, list[Part]] = {}
    for part in parts:
        groups.setdefault((part.lo, part.hi), []).append(part)
    return groups
