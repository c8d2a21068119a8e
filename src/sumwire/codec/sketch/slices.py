"""A sketch cut into runs of 8-byte words, so that several owners can add it.

Index words join by OR, cells add. Checksum, exponent, escapes and ranks travel once, behind the words of the first run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sumwire.codec.algebra import Bytes, Span, Sum
from sumwire.codec.sketch.parts import ESCAPE, SketchPayload, SketchSum, SketchTerms
from sumwire.kernels.sketch import WORD, Words

if TYPE_CHECKING:
    from sumwire.codec.sketch.codec import Sketch

_COUNTS = 4
"""Words of a head before its ranks and escapes: checksum, exponent, number of ranks, number of escapes."""


@dataclass(frozen=True, eq=False)
class SketchSlice(Sum):
    """Words lo..hi of one or several sketches, added; the first also has the head."""

    codec: Sketch
    values: Words = field(repr=False)
    lo: int
    hi: int
    head: SketchSum | None = None
    """A sum without index and cells."""

    @classmethod
    def of(cls, total: SketchSum, lo: int, hi: int, *, first: bool) -> SketchSlice:
        """A run of a whole sum."""
        values = np.concatenate([total.index, total.cells.view(np.uint64)])[lo:hi]
        head = _head_of(total) if first else None
        return cls(total.codec, total.terms, total.round_id, total.count, values, lo, hi, head)

    @classmethod
    def read(cls, codec: Sketch, terms: SketchTerms, data: Bytes, round_id: int, count: int, span: Span) -> SketchSlice:
        """A slice from the bytes that `packed` gave."""
        lo, hi = span
        words = data.copy().view(np.uint64)
        values, rest = words[: hi - lo], words[hi - lo :]
        head = _read_head(codec, terms, rest, round_id) if len(rest) else None
        return cls(codec, terms, round_id, count, values, lo, hi, head)

    @property
    def nbytes(self) -> int:
        return len(self.packed())

    def packed(self, out: Bytes | None = None) -> Bytes:
        pieces = [self.values] if self.head is None else [self.values, _write_head(self.head)]
        return np.concatenate(pieces).view(np.uint8)

    def part(self, lo: int, hi: int) -> SketchSlice:
        values = self.values[lo - self.lo : hi - self.lo]
        return SketchSlice(self.codec, self.terms, self.round_id, self.count, values, lo, hi, self.head)


def cut(payload: SketchPayload, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
    """A payload's runs, one after another, and their sizes."""
    whole = payload.codec._add([payload], None)
    runs = [SketchSlice.of(whole, lo, hi, first=k == 0).packed() for k, (lo, hi) in enumerate(pairwise(edges))]
    return np.concatenate(runs), tuple(map(len, runs))


def add(parts: Sequence[SketchSlice]) -> SketchSlice:
    """Slices of the same words, added."""
    first = parts[0]
    marks = max(0, min(first.hi, first.terms.index_words) - first.lo)  # type: ignore[attr-defined]
    rows = np.stack([part.values for part in parts])
    values = np.concatenate([np.bitwise_or.reduce(rows[:, :marks]), np.add.reduce(rows[:, marks:], dtype=np.uint64)])
    heads = [part.head for part in parts if part.head is not None]
    head = first.codec._add(heads, None) if heads else None
    count = sum(part.count for part in parts)
    return SketchSlice(first.codec, first.terms, first.round_id, count, values, first.lo, first.hi, head)


def join(slices: Sequence[SketchSlice]) -> SketchSum:
    """Adjacent slices that cover a whole sum, as that sum."""
    head = next(piece.head for piece in slices if piece.head is not None)
    values = np.concatenate([piece.values for piece in slices])
    marks = head.sketch_terms.index_words
    return SketchSum(
        head.codec, head.terms, head.round_id, head.count, head.ranks, values[:marks], values[marks:].view(np.int64),
        head.checksum, head.exponent, head.escapes,
    )  # fmt: skip


def _head_of(total: SketchSum) -> SketchSum:
    return SketchSum(
        total.codec, total.terms, total.round_id, total.count, total.ranks, total.index[:0], total.cells[:0],
        total.checksum, total.exponent, total.escapes,
    )  # fmt: skip


def _write_head(head: SketchSum) -> Words:
    counts = np.array([head.checksum & WORD, head.exponent, len(head.ranks), len(head.escapes)], np.uint64)
    escapes = np.frombuffer(head.escapes.tobytes() + bytes(-head.escapes.nbytes % 8), np.uint64)
    return np.concatenate([counts, np.array(head.ranks, np.uint64), escapes])


def _read_head(codec: Sketch, terms: SketchTerms, words: Words, round_id: int) -> SketchSum:
    checksum, exponent, ranks, escapes = words[:_COUNTS].tolist()
    who = tuple(words[_COUNTS : _COUNTS + ranks].tolist())
    listed = words[_COUNTS + ranks :].view(np.uint8)[: escapes * ESCAPE.itemsize].view(ESCAPE)
    nothing = words[:0]
    return SketchSum(
        codec, terms, round_id, ranks, who, nothing, nothing.view(np.int64), checksum, exponent, listed
    )  # fmt: skip
