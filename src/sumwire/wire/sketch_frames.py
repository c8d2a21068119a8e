"""Frames of the Sketch codec, which are never split. wire/sketch_bodies.py knows the bodies."""

from __future__ import annotations

from typing import TypeAlias

from sumwire.codec.base import Shape
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import SketchPayload, SketchSum, SketchTerms
from sumwire.wire import body as rules
from sumwire.wire import sketch_bodies
from sumwire.wire.body import Bytes
from sumwire.wire.header import Header
from sumwire.wire.limits import Kind

Item: TypeAlias = SketchTerms | SketchPayload | SketchSum


def describe(item: Item, round_id: int) -> tuple[Header, list[Bytes]]:
    """The header of an item, and the arrays that are its body."""
    family, body = item.codec.family, item.body()
    length = rules.nbytes(body)
    if isinstance(item, SketchTerms):
        return Header(kind=Kind.TERMS, family=family, size=item.size, hi=0, length=length, round_id=round_id), body
    kind, rank = (Kind.PAYLOAD, item.rank) if isinstance(item, SketchPayload) else (Kind.SUM, 0)
    header = Header(
        kind=kind,
        family=family,
        size=item.sketch_terms.size,
        hi=0,
        length=length,
        round_id=item.round_id,
        rank=rank,
        count=item.count,
        digest=item.terms.digest,
    )
    return header, body


def terms(header: Header, data: Bytes, codec: Sketch, shape: Shape) -> SketchTerms:
    return sketch_bodies.read_terms(codec, tuple(shape), data)


def payload(header: Header, data: Bytes, codec: Sketch, terms: SketchTerms) -> SketchPayload:
    """Copied out of the buffer, to where integers may lie."""
    return sketch_bodies.read_payload(codec, terms, header.round_id, header.rank, data)


def total(header: Header, data: Bytes, codec: Sketch, terms: SketchTerms) -> SketchSum:
    """Copied out of the buffer, to where integers may lie."""
    return sketch_bodies.read_sum(codec, terms, header.round_id, header.count, data)
