"""The Sketch codec's Terms, Payload and Sum, and the sizes that follow from terms."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Payload, Sum, Terms
from sumwire.codec.streams import Stream
from sumwire.kernels import sketch as kernels
from sumwire.kernels.hashing import mix
from sumwire.kernels.sketch import GROUP, TABLES, Coordinates, Geometry, Ints, Words

if TYPE_CHECKING:
    from sumwire.codec.sketch.codec import Sketch

ESCAPE = np.dtype([("at", "<u4"), ("bits", "<u4"), ("rank", "<u2")])
"""A value that is no lattice integer: its coordinate, its float32 word and who has it."""

Escapes = NDArray[np.void]

NO_ESCAPES: Escapes = np.zeros(0, ESCAPE)

MAX_SIZE = (1 << 32) - 1
MAX_EXPONENT = 254
LEAST = -149
"""Every finite float32 is a multiple of 2**LEAST."""
MAX_PROBES = 24
MAX_BLOCK = 1024

_WORTH = 16
"""A Bloom filter is used where it saves this part of a payload over a bitmap."""

_BLOCKS = 512
"""Blocks are halved until the values would fill this many: fewer are too coarse for hashes to even out."""

_SPANS = 48
"""And until a span is this many blocks long, for the same reason."""

_SPAN = 48
"""A span is _SPAN * sqrt(table) cells. Two values that are alone with each other in all their cells never peel: with
spans of s cells for n values that happens with probability 1.15 * n / s**2."""

_SPREAD = 4
"""Small tables get at least _SPREAD * n**(2/3) cells each for n values, for the same reason."""


@dataclass(frozen=True, eq=False)
class SketchTerms(Terms):
    """The largest exponent, and how many non-zeros to make room for. Joining takes the larger of each."""

    codec: Sketch
    exponent: int
    """Exponent field (0..254) of the largest finite value of any worker."""
    capacity: int
    """Non-zeros that the union of the workers' tensors may have; more cost a second exchange, but no value is lost."""

    @property
    def words(self) -> NDArray[Any]:
        return np.array([self.exponent, self.capacity], np.int64)

    def with_words(self, words: NDArray[Any]) -> SketchTerms:
        return SketchTerms(self.codec, self.shape, int(words[0]), int(words[1]))

    @cached_property
    def digest(self) -> int:
        return int.from_bytes(hashlib.blake2b(self.body()[0].tobytes(), digest_size=8).digest(), "little")

    def body(self) -> list[Bytes]:
        """The bytes on the wire."""
        return [np.array([self.exponent, self.capacity], "<u8").view(np.uint8)]

    @property
    def lsb(self) -> int:
        """The lattice's step is 2**lsb: as small as int64 allows for a sum of all workers' largest values."""
        room = 63 - (self.codec.workers - 1).bit_length()
        return max(max(self.exponent, 1) - 126 - room, LEAST)

    @cached_property
    def _sizes(self) -> tuple[int, int, int, int, int]:
        """log_block, table, span, words and probes of least total size; table is 0 where plain lanes are no larger."""
        best, choice = 8 * self.size, (0, 0, 0, 0, 0)
        if self.size == 0:
            return choice
        capacity = max(1, min(self.capacity, self.size))
        for probes in range(MAX_PROBES + 1):
            if probes == 0:
                words, extra = -(-self.size // GROUP), 0
            else:
                # probes / ln 2 bits per value leave half of all bits unset.
                words, extra = -(-capacity * probes * 11819 // (GROUP << 13)), self._false(capacity, probes)
            log_block, table, span = self._table(capacity + extra)
            total = 8 * words + 8 * TABLES * table
            # A Bloom filter takes more time than a bitmap: it must save something.
            total += total // _WORTH if probes else 0
            if total < best:
                best, choice = total, (log_block, table, span, words, probes)
        return choice

    def _false(self, capacity: int, probes: int) -> int:
        """False positives to make room for. Where values come in runs, so do they, by whole groups."""
        runs = (-(-self.size // GROUP) << 10) >> probes  # in 1024ths, on average
        return min(GROUP, capacity) * (runs + 3 * math.isqrt(runs << 10) + 1023 >> 10)

    def _table(self, items: int) -> tuple[int, int, int]:
        """log_block, cells of each sub-table and span, in integers, so that every worker finds the same."""
        room = max(items, TABLES * _SPREAD * _cube_root(items**2)) * self.codec.rows_in_1024
        table = -(-room // (TABLES << 10))
        span, block = _SPAN * math.isqrt(table), self.codec.block
        if block is None:
            block = 1 << max(0, min(items // _BLOCKS, span // _SPANS, MAX_BLOCK).bit_length() - 1)
        table = max(table, block)
        return block.bit_length() - 1, table, min(span, table - block + 1)

    @property
    def direct(self) -> bool:
        """Whether every coordinate has a lane of its own, since a table would be larger."""
        return self._sizes[1] == 0

    @property
    def bitmap(self) -> bool:
        """Whether the index has one bit per coordinate; it is a Bloom filter otherwise."""
        return self._sizes[4] == 0

    def geometry(self, round_id: int) -> Geometry:
        """Where coordinates go in this round; another round hashes differently."""
        return Geometry(self.size, *self._sizes, key=mix(self.codec.key ^ round_id))

    @property
    def cells(self) -> int:
        """Lanes of a payload, 8 bytes each."""
        return self.size if self.direct else TABLES * self._sizes[1]

    @property
    def index_words(self) -> int:
        """Words of the index, 8 bytes each."""
        return self._sizes[3]


def _cube_root(value: int) -> int:
    """The whole part of the cube root, the same on every platform."""
    root = round(math.cbrt(value))
    while root**3 > value:
        root -= 1
    while (root + 1) ** 3 <= value:
        root += 1
    return root


class _Cells:
    """What a payload and a sum hold: lanes, index, checksum and escapes."""

    terms: Terms
    index: Words
    cells: Ints
    checksum: int
    exponent: int
    escapes: Escapes

    @property
    def sketch_terms(self) -> SketchTerms:
        assert isinstance(self.terms, SketchTerms)
        return self.terms

    def _header(self) -> Bytes:
        return np.array([self.checksum, len(self.escapes) | self.exponent << 32], "<u8").view(np.uint8)

    def _lanes(self) -> list[Bytes]:
        return [
            self.index.astype("<u8", copy=False).view(np.uint8),
            self.cells.astype("<i8", copy=False).view(np.uint8),
        ]

    def _columns(self, *names: str) -> list[Bytes]:
        return [np.ascontiguousarray(self.escapes[name]).view(np.uint8) for name in names]


@dataclass(frozen=True, eq=False)
class SketchPayload(_Cells, Payload):
    """One worker's sketch."""

    codec: Sketch
    index: Words = field(repr=False)
    cells: Ints = field(repr=False)
    checksum: int
    exponent: int
    """As in the terms, but of this very tensor: the next round's terms are made of it."""
    escapes: Escapes = field(repr=False)

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.rank,)

    def part(self, lo: int, hi: int) -> SketchPayload:
        return self  # its frames are never split

    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        from sumwire.codec.sketch import slices  # which are made of these

        return slices.cut(self, edges)

    def streams(self, *, by_unit: bool) -> list[Stream]:
        from sumwire.codec.sketch import network  # which is made of these

        return network.streams(self)

    @property
    def nbytes(self) -> int:
        return 16 + self.index.nbytes + self.cells.nbytes + 8 * len(self.escapes)

    def body(self) -> list[Bytes]:
        """The bytes on the wire: see `wire/sketch.py`."""
        return [self._header(), *self._lanes(), *self._columns("at", "bits")]


@dataclass(frozen=True, eq=False)
class SketchSum(_Cells, Sum):
    """Sketches added, and whose they are."""

    codec: Sketch
    ranks: tuple[int, ...]
    index: Words = field(repr=False)
    cells: Ints = field(repr=False)
    checksum: int
    exponent: int
    escapes: Escapes = field(repr=False)

    @cached_property
    def peeled(self) -> Peeled:
        """Taken apart as far as possible."""
        return Peeled.of(self)

    @property
    def contributors(self) -> frozenset[int]:
        return frozenset(self.ranks)

    def part(self, lo: int, hi: int) -> SketchSum:
        return self  # its frames are never split

    def packed(self, out: Bytes | None = None) -> Bytes:
        return np.concatenate(self.body())

    @property
    def nbytes(self) -> int:
        return 16 + rank_bytes(self.codec.workers) + self.index.nbytes + self.cells.nbytes + 10 * len(self.escapes)

    def body(self) -> list[Bytes]:
        """The bytes on the wire: see `wire/sketch.py`."""
        present = np.zeros(8 * rank_bytes(self.codec.workers), np.uint8)
        present[list(self.ranks)] = 1
        ranks = np.packbits(present, bitorder="little")
        return [self._header(), ranks, *self._lanes(), *self._columns("at", "bits", "rank")]


def rank_bytes(workers: int) -> int:
    """Bytes of the set of ranks in a sum's body: one bit per worker, in whole words."""
    return 8 * -(-workers // 64)


@dataclass(frozen=True, eq=False)
class Peeled:
    """A sum taken apart as far as possible. Nothing in it is proven before `Sketch.complete` has checked it."""

    total: SketchSum
    at: Coordinates = field(repr=False)
    """Coordinates that the index allows, ascending."""
    values: Ints = field(repr=False)
    """Their lattice integers; 0 for the leftovers."""
    leftovers: Coordinates
    """Coordinates that could not be peeled: the same at every worker."""
    rest: Ints = field(repr=False)
    """What is still in the cells: the leftovers, and nothing else."""

    @classmethod
    def of(cls, total: SketchSum) -> Peeled:
        """Take values out of cells where they are alone, until no cell holds just one."""
        terms, geometry = total.sketch_terms, total.sketch_terms.geometry(total.round_id)
        if terms.direct:
            at = np.flatnonzero(total.cells).astype(np.uint32)
            return cls(total, at, total.cells[at], at[:0], total.cells[:0])
        at = kernels.candidates(geometry, total.index)
        values, rest = np.empty(len(at), np.int64), np.empty_like(total.cells)
        left = kernels.peel(geometry, at, total.cells, values, rest)
        return cls(total, at, values, at[left], rest)
