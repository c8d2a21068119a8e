"""Frames of the Snapshot codec: its words travel in the terms; payloads and sums are empty."""

from __future__ import annotations

import numpy as np

from sumwire.codec.base import Payload, Shape
from sumwire.codec.snapshot import NOTHING, Snapshot, SnapshotPayload, SnapshotSum, SnapshotTerms
from sumwire.errors import FrameError
from sumwire.wire import body as rules
from sumwire.wire.body import Bytes
from sumwire.wire.header import Header
from sumwire.wire.limits import Kind

CODEC = Snapshot


def write_terms(terms: SnapshotTerms, round_id: int) -> tuple[Header, list[Bytes]]:
    """The header, and the words; no words, if the worker has none."""
    body = [] if terms.values is None else [terms.values.view(np.uint8)]
    words = 0 if terms.values is None else terms.size
    header = Header(
        kind=Kind.TERMS, family=terms.codec.family, size=terms.size, hi=words, length=4 * words, round_id=round_id
    )
    return header, body


def write(item: SnapshotPayload | SnapshotSum) -> tuple[Header, list[Bytes]]:
    """The header: there is no body."""
    kind, rank = (Kind.PAYLOAD, item.rank) if isinstance(item, Payload) else (Kind.SUM, 0)
    header = Header(
        kind=kind,
        family=item.codec.family,
        size=item.terms.size,
        hi=0,
        length=0,
        round_id=item.round_id,
        rank=rank,
        count=item.count,
        digest=item.terms.digest,
    )
    return header, []


def terms(header: Header, data: Bytes, codec: Snapshot, shape: Shape) -> SnapshotTerms:
    """Copied: terms outlive a receiver's buffer."""
    if header.hi not in (0, header.size):
        raise FrameError(f"word range of terms ends at hi={header.hi}: it is 0 or all of {header.size} words")
    values = data.copy().view(np.int32) if header.hi else None
    if values is not None and not bool((values != NOTHING).any()):
        raise FrameError("a snapshot of nothing but empty words has no body: hi and length must be 0")
    return SnapshotTerms(codec, tuple(shape), values)


def payload(header: Header, data: Bytes, codec: Snapshot, terms: SnapshotTerms) -> SnapshotPayload:
    rules.check_rank(header, codec.workers)
    _check_empty(header)
    return SnapshotPayload(codec, terms, header.round_id, header.rank)


def total(header: Header, data: Bytes, codec: Snapshot, terms: SnapshotTerms) -> SnapshotSum:
    if header.count > codec.headroom:
        raise FrameError(f"count {header.count} is over the headroom of {codec.headroom} payloads")
    _check_empty(header)
    return SnapshotSum(codec, terms, header.round_id, header.count)


def _check_empty(header: Header) -> None:
    if header.length or header.hi:
        raise FrameError(f"body length {header.length}, hi={header.hi}: payloads and sums of a snapshot are empty")
