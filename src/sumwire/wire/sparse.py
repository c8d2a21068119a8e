"""Frames of the Sparse codec: segments of shards, one after the other; its terms are empty."""

from __future__ import annotations

import numpy as np

from sumwire.codec.algebra import Payload, Shape
from sumwire.codec.sparse import segment
from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.sparse.parts import SparsePayload, SparseSum, SparseTerms
from sumwire.errors import FrameError
from sumwire.wire import body as rules
from sumwire.wire.body import Bytes, Counts
from sumwire.wire.header import Header
from sumwire.wire.limits import Kind

CODEC = Sparse

_FLOAT32 = segment.KINDS.index(np.dtype(np.float32))
"""Of a sum's values, whatever its payloads had."""


def write_terms(terms: SparseTerms, round_id: int) -> tuple[Header, list[Bytes]]:
    """The header: there is no body."""
    family = terms.codec.family
    return Header(kind=Kind.TERMS, family=family, size=terms.size, hi=0, length=0, round_id=round_id), []


def write(item: SparsePayload | SparseSum) -> tuple[Header, list[Bytes]]:
    """The header, and the arrays that are the body. An open sum is closed."""
    if isinstance(item, Payload):
        kind, bits, rank, flags, count = Kind.PAYLOAD, 1 + item.kind, item.rank, 0, item.count
        body = [item.data]
    else:
        item = item.closed()
        kind, bits, rank = Kind.SUM, 0, 0
        count, flags, front = rules.write_counts(np.array(item.counts, np.int32), item.count)
        body = [*front, item.data]
    header = Header(
        kind=kind,
        family=item.codec.family,
        size=item.size,
        lo=item.lo,
        hi=item.hi,
        length=rules.nbytes(body),
        round_id=item.round_id,
        bits=bits,
        rank=rank,
        count=count,
        digest=item.terms.digest,
        flags=flags,
    )
    return header, body


def terms(header: Header, data: Bytes, codec: Sparse, shape: Shape) -> SparseTerms:
    """Nothing but the shape, which the receiver knows."""
    return SparseTerms(codec, tuple(shape))


def payload(header: Header, data: Bytes, codec: Sparse, terms: SparseTerms) -> SparsePayload:
    """A view of the data, every segment of it checked."""
    rules.check_rank(header, codec.workers)
    kind = header.bits - 1
    sizes, _ = _segments(header, data, codec, kind)
    return SparsePayload(codec, terms, header.round_id, header.rank, kind, data, sizes, header.lo, header.hi)


def total(header: Header, data: Bytes, codec: Sparse, terms: SparseTerms) -> SparseSum:
    """A closed sum, a view of the data, every segment of it checked."""
    counts, data = rules.read_counts(header, data, codec.headroom)
    sizes, entries = _segments(header, data, codec, _FLOAT32)
    _check_empty(header, counts, entries)
    return SparseSum(
        codec, terms, header.round_id, header.count, None, data, sizes, tuple(counts.tolist()), header.lo, header.hi
    )


def _segments(header: Header, data: Bytes, codec: Sparse, kind: int) -> tuple[tuple[int, ...], list[int]]:
    """Bytes and entries of each segment. Nothing on the wire tells them: each index is read to find its end.

    Only read, not expanded: the size and the entries that a frame claims cost nothing here.
    """
    if header.hi > codec.shards:
        raise FrameError(f"shard range ends at hi={header.hi}, but the codec has {codec.shards} shards")
    bits = codec.deal(header.size).bits
    sizes, entries, at = [], [], 0
    for shard in range(header.lo, header.hi):
        try:
            size, count = segment.measure(data[at:], kind, bits[shard])
        except FrameError as error:
            raise FrameError(f"segment {shard} at byte {at} of the body is bad: {error}") from None
        sizes.append(size)
        entries.append(count)
        at += size
    if at != len(data):
        raise FrameError(
            f"body length: {len(data)} bytes of segments, but those of shards {header.lo}..{header.hi} end at {at}"
        )
    return tuple(sizes), entries


def _check_empty(header: Header, counts: Counts, entries: list[int]) -> None:
    """Refuse entries where no payload was added."""
    for shard, count, found in zip(range(header.lo, header.hi), counts, entries, strict=True):
        if found and not count:
            raise FrameError(f"segment {shard} has {found} entries, but no payloads are in it: its count is 0")
