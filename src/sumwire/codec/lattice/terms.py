"""What workers of a Lattice agree on: a scale per block, and the block layout that follows from the scales."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Terms
from sumwire.codec.options import same_family
from sumwire.errors import InputError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.lattice.blocks import starts_of
from sumwire.kernels.lattice.scales import LARGEST_SCALE, MOST_STEP, round_down
from sumwire.kernels.lattice.segments import Segments

if TYPE_CHECKING:
    from sumwire.codec.lattice.definition import LatticeDefinition

REFUSED = 0x7FFF
"""In place of a base: wins every maximum, so that whoever joins terms with a refusal sees it."""

_PACKED = [width for width in range(33) if width not in (0, 8, 16, 32)]


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """What terms mean for one member of the family: each block's width class, its width, and where its bytes lie."""

    codec: LatticeDefinition = field(repr=False)
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
        """Whether the lanes of any block have other bytes on the wire than in memory."""
        return bool(np.bincount(self.lane_bits, minlength=33)[_PACKED].any())

    @property
    def payload_bytes(self) -> int:
        return (int(self.bits_at[-1]) + 7) // 8


@dataclass(frozen=True, eq=False)
class LatticeTerms(Terms):
    """The scale of each block. Joining takes the larger: non-negative floats order as integers.

    Where a byte holds a scale, scales are multiples of an eighth of an octave, and none is more than 31.75 octaves
    below the largest: joining rounds up what is, which depends on no order.

    Attributes
    ----------
    scales : ndarray of float32
        Root mean square of each block, rounded up, the largest over the workers once joined.
    capped : bool
        Whether an aggregator lowered scales: a worker above them encodes what `Lattice.fit` gives.
    """

    codec: LatticeDefinition
    scales: NDArray[np.float32]
    capped: bool = False
    _layouts: dict[int, BlockLayout] = field(default_factory=dict, repr=False)
    segments: dict[float, Segments] = field(default_factory=dict, repr=False)
    """How narrow sums are cut, by their bits per value: see `narrow.segments_of`, which fills it."""

    def __post_init__(self) -> None:
        self.scales.flags.writeable = False

    @property
    def words(self) -> NDArray[Any]:
        # As integers, which a switch can compare and flush-to-zero does not change.
        return self.scales.view(np.int32)

    def with_words(self, words: NDArray[Any]) -> LatticeTerms:
        scales = words.view(np.float32)
        if self.codec.byte_terms:
            scales = scales.copy()
            kernels.round_scales(scales)
        return LatticeTerms(self.codec, self.shape, scales)

    @property
    def bases(self) -> NDArray[np.int32] | None:
        if not self.codec.byte_terms:
            return None
        return np.array([kernels.largest_step(self.scales) if self.encodable else REFUSED], np.int32)

    def codes(self, bases: NDArray[np.int32]) -> Bytes:
        return kernels.codes_of(self.scales, int(bases[0]))

    def with_codes(self, bases: NDArray[np.int32], codes: Bytes) -> LatticeTerms:
        base = int(bases[0])
        refused = base > MOST_STEP
        scales = np.full(len(codes), np.nan, np.float32) if refused else kernels.scales_of(codes, base)
        return LatticeTerms(self.codec, self.shape, scales)

    def join_codes(self, bases: NDArray[np.int32], codes: Bytes) -> LatticeTerms:
        joined = bases.max(axis=0)
        return self.with_codes(joined, kernels.join_codes(codes, joined - bases[:, 0]))

    @cached_property
    def body(self) -> Bytes:
        """What a frame holds: float32 scales, or a uint16 base and a byte for each block; nothing of a refusal."""
        if not self.encodable:
            return np.empty(0, np.uint8)
        bases = self.bases
        if bases is None:
            return self.scales.view(np.uint8)
        return np.concatenate([bases.astype(np.uint16).view(np.uint8), self.codes(bases)])

    @property
    def nbytes(self) -> int:
        return len(self.body)

    @property
    def memory(self) -> int:
        return self.scales.nbytes if self.encodable else 0

    def as_capped(self) -> LatticeTerms:
        return LatticeTerms(self.codec, self.shape, self.scales, True)

    @cached_property
    def encodable(self) -> bool:
        # NaN, which wins every maximum, compares false; all scales of a refusal are NaN, so one tells.
        scales = self.scales
        return not len(scales) or bool(scales[0] <= LARGEST_SCALE and scales.max() <= LARGEST_SCALE)

    @staticmethod
    def join_capped(proposals: Sequence[LatticeTerms], cap: float) -> LatticeTerms:
        """Terms joined so that no scale exceeds `cap` times the median of the workers' scales.

        Where that median is 0, the largest scale stays. Where a byte holds a scale, the limit is rounded down to one
        that it can hold.
        """
        joined = reduce(or_, proposals)
        if not joined.encodable:
            return joined
        middle = np.sort([terms.scales for terms in proposals], axis=0)[(len(proposals) - 1) // 2]
        limit = np.where(middle > 0, np.minimum(middle * np.float64(cap), np.finfo(np.float32).max), np.inf)
        scales = np.minimum(joined.scales, limit).astype(np.float32)
        if joined.codec.byte_terms:
            round_down(scales)
            kernels.round_scales(scales)
        return LatticeTerms(joined.codec, joined.shape, scales, True)

    @cached_property
    def digest(self) -> int:
        shown = self.body if self.encodable else self.scales[:1]  # refusals carry no scales on the wire
        return int.from_bytes(hashlib.blake2b(shown.tobytes(), digest_size=8).digest(), "little")

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Coordinates of each block."""
        sizes: NDArray[np.int64] = kernels.block_sizes(self.size, self.codec.scheme.log_block)
        return sizes

    def span(self, block: int) -> tuple[int, int]:
        """First coordinate of a block, and the one after its last."""
        start = int(self.sizes[:block].sum())
        return start, start + int(self.sizes[block])

    def payload_bytes(self, codec: LatticeDefinition) -> int:
        """Bytes of the payload that `codec` sends under these terms."""
        return self.layout(codec).payload_bytes

    def layout(self, codec: LatticeDefinition) -> BlockLayout:
        """Layout of all blocks for this member: in integers, so that every worker and aggregator derives the same."""
        if codec is not self.codec:
            same_family(self.codec, codec, "read these terms")
        layout = self._layouts.get(codec.bits)
        if layout is None:
            layout = self._layouts[codec.bits] = self._lay_out(codec)
        return layout

    def _lay_out(self, codec: LatticeDefinition) -> BlockLayout:
        floor = 0 if codec.feedback else codec.least_width
        classes = self._allocate(codec, self.scales, codec.family_bits, floor)
        widths = classes
        if codec.bits < codec.family_bits:
            # A member with fewer bits still sends something of every block, so counts stay the same.
            sent = np.where(classes > 0, self.scales, np.float32(0))
            widths = np.minimum(self._allocate(codec, sent, codec.bits, codec.least_width), classes)
        return BlockLayout(codec, self.sizes, classes, widths)

    def _allocate(self, codec: LatticeDefinition, scales: NDArray[np.float32], bits: int, floor: int) -> Bytes:
        if codec.widths == "fixed":
            return np.where(scales.view(np.uint32) > 0, np.uint8(bits), np.uint8(0))
        widths = np.empty(len(scales), np.uint8)
        energy = round(codec.energy * 256)
        log_block, ladder = codec.scheme.log_block, codec.allowed_widths
        kernels.allocate(scales, self.size, log_block, bits * self.size, energy, ladder, floor, widths)
        return widths


def own_terms(codec: LatticeDefinition, terms: object) -> LatticeTerms:
    """The terms, if they are this codec's."""
    if not isinstance(terms, LatticeTerms):
        raise InputError(f"a Lattice codec needs its own terms, not {type(terms).__name__}: call propose on it")
    same_family(codec, terms.codec, "encode under these terms")
    return terms
