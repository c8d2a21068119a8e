"""Frames of the Sketch codec, which are never split; bodies come from a wire that nobody trusts.

All numbers are little-endian. Everything but the number of escapes follows from the terms.

terms     u64 exponent, u64 capacity
payload   u64 checksum; u32 escapes e; u8 exponent; 3 zero bytes; index: u64 words; cells: i64 lanes;
          then e u32 coordinates, strictly ascending, and e u32 float32 words
sum       as a payload, but: after the first 16 bytes one bit per worker for the ranks in it, in whole u64
          words; escapes ascend by coordinate, then rank; e u16 ranks follow at the end
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Payload, Shape
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import (
    ESCAPE,
    MAX_EXPONENT,
    MAX_SIZE,
    Escapes,
    SketchPayload,
    SketchSum,
    SketchTerms,
    rank_bytes,
)
from sumwire.errors import FrameError
from sumwire.kernels.sketch import GROUP, Ints, Words
from sumwire.wire import body as rules
from sumwire.wire.body import Bytes
from sumwire.wire.header import Header
from sumwire.wire.limits import Kind

CODEC = Sketch

_HEADER = 16


def write_terms(terms: SketchTerms, round_id: int) -> tuple[Header, list[Bytes]]:
    """The header, and the arrays that are the body."""
    family, body = terms.codec.family, terms.body()
    length = rules.nbytes(body)
    return Header(kind=Kind.TERMS, family=family, size=terms.size, hi=0, length=length, round_id=round_id), body


def write(item: SketchPayload | SketchSum) -> tuple[Header, list[Bytes]]:
    """The header, and the arrays that are the body."""
    body = item.body()
    kind, rank = (Kind.PAYLOAD, item.rank) if isinstance(item, Payload) else (Kind.SUM, 0)
    header = Header(
        kind=kind,
        family=item.codec.family,
        size=item.sketch_terms.size,
        hi=0,
        length=rules.nbytes(body),
        round_id=item.round_id,
        rank=rank,
        count=item.count,
        digest=item.terms.digest,
    )
    return header, body


def terms(header: Header, data: Bytes, codec: Sketch, shape: Shape) -> SketchTerms:
    return read_terms(codec, tuple(shape), data)


def payload(header: Header, data: Bytes, codec: Sketch, terms: SketchTerms) -> SketchPayload:
    """Copied out of the buffer, to where integers may lie."""
    return read_payload(codec, terms, header.round_id, header.rank, data)


def total(header: Header, data: Bytes, codec: Sketch, terms: SketchTerms) -> SketchSum:
    """Copied out of the buffer, to where integers may lie."""
    return read_sum(codec, terms, header.round_id, header.count, data)


def read_terms(codec: Sketch, shape: Shape, data: Bytes) -> SketchTerms:
    """Terms from their body."""
    data = _bytes(data)
    if len(data) != _HEADER:
        raise FrameError(f"body length: {len(data)} bytes of sketch terms, they have {_HEADER}")
    exponent, capacity = (int(number) for number in data.view("<u8"))
    size = math.prod(shape)
    if size > MAX_SIZE:
        raise FrameError(f"shape {shape} has {size} coordinates, the limit is {MAX_SIZE}")
    if exponent > MAX_EXPONENT:
        raise FrameError(f"exponent {exponent} is not in 0..{MAX_EXPONENT}")
    if capacity > size:
        raise FrameError(f"capacity {capacity} is more than the tensor's {size} coordinates")
    return SketchTerms(codec, shape, exponent, capacity)


def read_payload(codec: Sketch, terms: SketchTerms, round_id: int, rank: int, data: Bytes) -> SketchPayload:
    """A payload from its body."""
    if not 0 <= rank < codec.workers:
        raise FrameError(f"rank {rank} is not in 0..{codec.workers - 1}")
    body = _Body(terms, _bytes(data), "payload", 0, 8)
    escapes = body.escapes()
    escapes["rank"] = rank
    return SketchPayload(codec, terms, round_id, rank, body.index, body.cells, body.checksum, body.exponent, escapes)


def read_sum(codec: Sketch, terms: SketchTerms, round_id: int, count: int, data: Bytes) -> SketchSum:
    """A sum of `count` payloads from its body."""
    body = _Body(terms, _bytes(data), "sum", rank_bytes(codec.workers), 10)
    ranks = np.flatnonzero(np.unpackbits(body.ranks, bitorder="little"))
    if len(ranks) and ranks[-1] >= codec.workers:
        raise FrameError(f"rank {ranks[-1]} is not in 0..{codec.workers - 1}")
    if len(ranks) != count or count < 1:
        raise FrameError(f"the sum names {len(ranks)} ranks, its count is {count}")
    escapes = body.escapes()
    if not np.isin(escapes["rank"], ranks).all():
        raise FrameError("an escape is of a rank that is not in the sum")
    present = tuple(ranks.tolist())
    return SketchSum(
        codec, terms, round_id, count, present, body.index, body.cells, body.checksum, body.exponent, escapes
    )


def _bytes(data: Bytes) -> Bytes:
    # A copy, at an address that integers may have.
    return np.array(np.frombuffer(data, np.uint8))


class _Body:
    """The parts of a payload's or a sum's body, checked."""

    def __init__(self, terms: SketchTerms, data: Bytes, what: str, ranks: int, record: int) -> None:
        index, cells = 8 * terms.index_words, 8 * terms.cells
        fixed = _HEADER + ranks + index + cells
        if len(data) < fixed:
            raise FrameError(f"body length: {len(data)} bytes of a sketch {what}, the terms imply at least {fixed}")
        self.checksum, word = (int(number) for number in data[:_HEADER].view("<u8"))
        count, self.exponent = word & 0xFFFFFFFF, word >> 32
        if len(data) != fixed + record * count:
            raise FrameError(
                f"body length: {len(data)} bytes of a sketch {what}, {fixed + record * count} for its {count} escapes"
            )
        if self.exponent > MAX_EXPONENT:
            raise FrameError(f"exponent {self.exponent} is not in 0..{MAX_EXPONENT}")
        at = _HEADER + ranks
        self.ranks = data[_HEADER:at]
        self.index: Words = data[at : at + index].view("<u8").astype(np.uint64, copy=False)
        self.cells: Ints = data[at + index : fixed].view("<i8").astype(np.int64, copy=False)
        self._tail, self._count, self._terms = data[fixed:], count, terms
        rest = terms.size % GROUP
        if not terms.direct and terms.bitmap and rest and int(self.index[-1]) >> rest:
            raise FrameError(f"padding of the index is not 0: only {rest} bits of its last word are in use")

    def escapes(self) -> Escapes:
        """The escapes, if their order and their coordinates are right."""
        count, tail = self._count, self._tail
        out = np.zeros(count, ESCAPE)
        out["at"], out["bits"] = tail[: 4 * count].view("<u4"), tail[4 * count : 8 * count].view("<u4")
        if len(tail) > 8 * count:
            out["rank"] = tail[8 * count :].view("<u2")
        if count and int(out["at"].max()) >= self._terms.size:
            raise FrameError(f"an escape's coordinate {out['at'].max()} is not in 0..{self._terms.size - 1}")
        order: NDArray[np.uint64] = out["at"].astype(np.uint64) << np.uint64(16) | out["rank"]
        if not (order[1:] > order[:-1]).all():
            raise FrameError("escapes are not in ascending order")
        if not (out["bits"] << np.uint32(1)).all():
            raise FrameError("an escape's value is zero: zeros are no entries")
        return out
