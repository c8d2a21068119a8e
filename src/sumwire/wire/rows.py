"""Frames of the Rows codec: the shape of the table in the terms, segments of rows in payloads and sums."""

from __future__ import annotations

import numpy as np

from sumwire.codec.algebra import Payload, Shape
from sumwire.codec.rows import rows as coding
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.parts import RowsPayload, RowsSum, RowsTerms
from sumwire.codec.sparse.segment import KINDS
from sumwire.errors import FrameError
from sumwire.wire import body as rules
from sumwire.wire.body import Bytes
from sumwire.wire.header import Header
from sumwire.wire.limits import Kind

CODEC = Rows


def write_terms(terms: RowsTerms, round_id: int) -> tuple[Header, list[Bytes]]:
    """The header, and the table's rows and values of each."""
    header = Header(kind=Kind.TERMS, family=terms.codec.family, size=terms.size, hi=0, length=16, round_id=round_id)
    return header, [terms.words[:2].astype("<i8").view(np.uint8)]


def write(item: RowsPayload | RowsSum) -> tuple[Header, list[Bytes]]:
    """The header, and the arrays that are the body. An open sum is closed."""
    if isinstance(item, Payload):
        kind, bits, rank, flags, count = Kind.PAYLOAD, 1 + item.kind, item.rank, 0, item.count
        lo, hi, body = item.lo, item.hi, [item.data]
    else:
        kind, bits, rank = Kind.SUM, 0, 0
        lo, hi = item.lo, item.hi
        counts = np.array([count for _, count in item.sums.values()], np.int32)
        count, flags, front = rules.write_counts(counts, item.count)
        body = [*front, item.packed()]
    header = Header(
        kind=kind,
        family=item.codec.family,
        size=item.terms.size,
        lo=lo,
        hi=hi,
        length=rules.nbytes(body),
        round_id=item.round_id,
        bits=bits,
        rank=rank,
        count=count,
        digest=item.terms.digest,
        flags=flags,
    )
    return header, body


def terms(header: Header, data: Bytes, codec: Rows, shape: Shape) -> RowsTerms:
    """Checked that the table has as many values as the tensor."""
    table, width = data.copy().view("<i8").tolist()
    if table < 0 or width < 0 or table * width != header.size:
        raise FrameError(f"a table of {table} rows of {width} values does not have the {header.size} of the tensor")
    return RowsTerms(codec, tuple(shape), table, width, (table, width))


def payload(header: Header, data: Bytes, codec: Rows, terms: RowsTerms) -> RowsPayload:
    """Every segment of it checked."""
    rules.check_rank(header, codec.workers)
    kind = header.bits - 1
    parts = _segments(header, data, codec, terms, KINDS[kind])
    return RowsPayload(codec, terms, header.round_id, header.rank, tuple(parts), kind, header.lo, header.hi)


def total(header: Header, data: Bytes, codec: Rows, terms: RowsTerms) -> RowsSum:
    """A closed sum, every segment of it checked."""
    counts, data = rules.read_counts(header, data, codec.headroom)
    parts = _segments(header, data, codec, terms, np.dtype(np.float32))
    sums = {}
    for shard, rows, count in zip(range(header.lo, header.hi), parts, counts.tolist(), strict=True):
        if len(rows.numbers) and not count:
            raise FrameError(f"segment {shard} has rows, but no payloads are in it: its count is 0")
        sums[shard] = rows, count
    return RowsSum(codec, terms, header.round_id, header.count, None, sums, header.lo, header.hi)


def _segments(
    header: Header, data: Bytes, codec: Rows, terms: RowsTerms, dtype: np.dtype[np.generic]
) -> list[coding.Rows]:
    if header.hi > codec.shards:
        raise FrameError(f"shard range ends at hi={header.hi}, but the codec has {codec.shards} shards")
    parts = coding.read_segments(data, header.hi - header.lo, terms.table, terms.width, dtype)
    for shard, rows in zip(range(header.lo, header.hi), parts, strict=True):
        if bool((coding.owners(rows.numbers, codec.shards) != shard).any()):
            raise FrameError(f"segment {shard} has rows that belong to other shards")
    return parts
