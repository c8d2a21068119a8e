"""The Lattice codec's Terms, Payload and Sum: arrays with the identity that keeps them apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Payload, Span, Sum, Terms
from sumwire.codec.options import same
from sumwire.errors import ConfigError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.lattice.layout import starts_of

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice

LARGEST_SCALE = np.float32(2.0**115)
"""Blocks with a larger rms could decode to more than float32 holds."""

_PACKED = [width for width in range(33) if width not in (0, 8, 16, 32)]


@dataclass(frozen=True, eq=False)
class Plan:
    """What terms mean for one codec: each block's width class, and the width this codec sends."""

    codec: Lattice = field(repr=False)
    sizes: NDArray[np.int64]
    classes: Bytes
    widths: Bytes

    @cached_property
    def bits_at(self) -> NDArray[np.int64]:
        """Where the indices of each block begin in a payload, in bits; and where the last ones end."""
        return starts_of(self.sizes * self.widths)

    @cached_property
    def lanes_at(self) -> NDArray[np.int64]:
        """Where the lanes of each block begin in a sum in memory, in bytes; and where the last ones end."""
        return starts_of(kernels.lane_bytes(self.codec.scheme, self.sizes, self.classes))

    @cached_property
    def lane_bits(self) -> Bytes:
        """Width of each block's lanes on the wire."""
        return kernels.lane_bits(self.codec.scheme, self.classes)

    @cached_property
    def packed_at(self) -> NDArray[np.int64]:
        """Where the lanes of each block begin in a packed sum, in bits; and where the last ones end."""
        return starts_of(self.sizes * self.lane_bits)

    @cached_property
    def lanes_need_packing(self) -> bool:
        """Whether lanes of any block are other bytes on the wire than in memory."""
        return bool(np.bincount(self.lane_bits, minlength=33)[_PACKED].any())

    @property
    def payload_bytes(self) -> int:
        return (int(self.bits_at[-1]) + 7) // 8


@dataclass(frozen=True, eq=False)
class LatticeTerms(Terms):
    """The scale of each block. Joining takes the larger: non-negative floats order as integers."""

    codec: Lattice
    scales: NDArray[np.float32]
    capped: bool = False
    """Whether scales were held down: whoever is above them encodes what `Lattice.fit` gives."""
    _plans: dict[int, Plan] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.scales.flags.writeable = False

    @property
    def words(self) -> NDArray[Any]:
        # As integers, which is what a switch can do, and what flush-to-zero cannot spoil.
        return self.scales.view(np.int32)

    def with_words(self, words: NDArray[Any]) -> LatticeTerms:
        return LatticeTerms(self.codec, self.shape, words.view(np.float32))

    def as_capped(self) -> LatticeTerms:
        return LatticeTerms(self.codec, self.shape, self.scales, True)

    @cached_property
    def encodable(self) -> bool:
        # NaN, which wins every maximum, compares false; all scales of a refusal are NaN.
        return all(bool((scales <= LARGEST_SCALE).all()) for scales in (self.scales[:1], self.scales))

    @staticmethod
    def join_capped(proposals: Sequence[LatticeTerms], cap: float) -> LatticeTerms:
        """Terms joined so that no scale is over `cap` times the median of the workers': no single one sets it.

        Where most workers have nothing, the largest holds. Whoever is above them encodes what `Lattice.fit` gives.
        """
        joined = reduce(or_, proposals)
        if not joined.encodable:
            return joined
        middle = np.sort([terms.scales for terms in proposals], axis=0)[(len(proposals) - 1) // 2]
        limit = np.where(middle > 0, np.minimum(middle * np.float64(cap), np.finfo(np.float32).max), np.inf)
        return LatticeTerms(joined.codec, joined.shape, np.minimum(joined.scales, limit).astype(np.float32), True)

    @cached_property
    def digest(self) -> int:
        told = self.scales if self.encodable else self.scales[:1]  # which is no less than is on the wire
        return int.from_bytes(hashlib.blake2b(told.tobytes(), digest_size=8).digest(), "little")

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Coordinates of each block."""
        sizes: NDArray[np.int64] = kernels.block_sizes(self.size, self.codec.scheme.log_block)
        return sizes

    def span(self, block: int) -> tuple[int, int]:
        """First coordinate of a block, and the one after its last."""
        start = int(self.sizes[:block].sum())
        return start, start + int(self.sizes[block])

    def payload_bytes(self, codec: Lattice) -> int:
        """Bytes of the payload that `codec` sends under these terms."""
        return self.plan(codec).payload_bytes

    def plan(self, codec: Lattice) -> Plan:
        """Widths of all blocks: pure integers, so every worker and aggregator derives the same."""
        if codec is not self.codec:
            same("codec family", self.codec.family, codec.family, "read these terms")
        plan = self._plans.get(codec.bits)
        if plan is None:
            plan = self._plans[codec.bits] = self._make_plan(codec)
        return plan

    def _make_plan(self, codec: Lattice) -> Plan:
        floor = 0 if codec.feedback else codec._least
        classes = self._allocate(codec, self.scales, codec.family_bits, floor)
        widths = classes
        if codec.bits < codec.family_bits:
            # Whoever sends less still sends something of every block, so counts stay the same.
            sent = np.where(classes > 0, self.scales, np.float32(0))
            widths = np.minimum(self._allocate(codec, sent, codec.bits, codec._least), classes)
        return Plan(codec, self.sizes, classes, widths)

    def _allocate(self, codec: Lattice, scales: NDArray[np.float32], bits: int, floor: int) -> Bytes:
        if codec.widths == "fixed":
            return np.where(scales.view(np.uint32) > 0, np.uint8(bits), np.uint8(0))
        widths = np.empty(len(scales), np.uint8)
        energy = round(codec.energy * 256)
        kernels.allocate(scales, self.sizes, bits * self.size, energy, codec._ladder, floor, widths)
        return widths


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
        # Blocks of fewer than 8 coordinates share bytes with their neighbours.
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
        bits_at = self.lattice_terms.plan(self.codec).bits_at
        start, stop = ((int(bits_at[edge] - bits_at[self.lo]) + 7) // 8 for edge in (lo, hi))
        own = self.widths[lo - self.lo : hi - self.lo]
        return LatticePayload(self.codec, self.terms, self.round_id, self.rank, self.data[start:stop], own, lo, hi)

    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        return self.data, self.codec.payload_sizes(self.terms, edges)

    def summands(self, out: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """Words that hold several lanes each, biased so that no partial sum overflows."""
        terms, scheme = self.lattice_terms, self.codec.scheme
        classes = terms.plan(self.codec).classes
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

    def _classes(self) -> Bytes:
        classes = self.lattice_terms.plan(self.codec).classes[self.lo : self.hi]
        return np.ascontiguousarray(classes)

    def _lane_bits(self) -> Bytes:
        return kernels.lane_bits(self.codec.scheme, self._classes())

    def part(self, lo: int, hi: int) -> LatticeSum:
        """The sum of blocks lo..hi alone, without copying."""
        self._check_span(lo, hi)
        counts = self.counts[lo - self.lo : hi - self.lo]
        count = int(counts.max()) if len(counts) else self.count
        lanes_at = self.lattice_terms.plan(self.codec).lanes_at
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
        out = np.empty(self.nbytes, np.uint8) if out is None else out[: self.nbytes]
        scheme, size = self.codec.scheme, self.lattice_terms.size
        kernels.pack_lanes(scheme, size, self._classes(), self.lanes, out, self.lo, self.hi)
        return out


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

    def unpacked(self) -> LatticeSum:
        """The same with its lanes in memory, as adding needs them."""
        terms = self.lattice_terms
        plan = terms.plan(self.codec)
        lanes = np.empty(int(plan.lanes_at[-1]), np.uint8)
        for (lo, hi), data in self.parts:
            here, classes = lanes[plan.lanes_at[lo] : plan.lanes_at[hi]], np.ascontiguousarray(plan.classes[lo:hi])
            kernels.unpack_lanes(self.codec.scheme, terms.size, classes, data, here, lo, hi)
        blocks = len(plan.classes)
        counts = np.full(blocks, self.count, np.int32)
        return LatticeSum(self.codec, terms, self.round_id, self.count, lanes, counts, 0, blocks, late=self.late)


def _empty(like: LatticeSum, block: int) -> LatticeSum:
    """A sum of nothing at one place: stretches what it is added to."""
    return LatticeSum(like.codec, like.terms, like.round_id, 0, like.lanes, like.counts, block, block)
