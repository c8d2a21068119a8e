"""Frames of the Sketch codec, which are never split. wire/sketch_body.py knows the bodies."""

from __future__ import annotations

from sumwire.codec.algebra import Payload, Shape
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import SketchPayload, SketchSum, SketchTerms
from sumwire.wire import body as rules
from sumwire.wire import sketch_body
from sumwire.wire.body import Bytes
from sumwire.wire.header import Header
from sumwire.wire.limits import Kind

CODEC = Sketch


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
    return sketch_body.read_terms(codec, tuple(shape), data)


def payload(header: Header, data: Bytes, codec: Sketch, terms: SketchTerms) -> SketchPayload:
    """Copied out of the buffer, to where integers may lie."""
    return sketch_body.read_payload(codec, terms, header.round_id, header.rank, data)


def total(header: Header, data: Bytes, codec: Sketch, terms: SketchTerms) -> SketchSum:
    """Copied out of the buffer, to where integers may lie."""
    return sketch_body.read_sum(codec, terms, header.round_id, header.count, data)
