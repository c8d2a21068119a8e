"""One test per way that a frame of the Rows codec can be bad."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from sumwire import FrameError, MismatchError, Sparse
from sumwire.codec.rows.rows import RowSlices
from sumwire.wire.frame import parse, to_bytes
from sumwire.wire.header import HEADER_SIZE, Header
from sumwire.wire.limits import MAX_SIZE, Kind
from tests import ON_REFERENCE
from tests.wire.forging import forge
from tests.wire.test_golden_rows import spec_shard
from tests.wire.test_rows_frames import example

SHAPE = (50, 3)
CODEC, TERMS, PAYLOADS = example("three", SHAPE, 3)
HALF = example("three", SHAPE, 3, "float16")[2][0]
RAW = {
    "terms": to_bytes(TERMS, round_id=3),
    "payload": to_bytes(PAYLOADS[0]),
    "half": to_bytes(HALF),
    "sum": to_bytes(CODEC.add(PAYLOADS)),
    "uneven": to_bytes(PAYLOADS[0] + PAYLOADS[1].part(1, 2)),
}


def read(raw, codec=CODEC, terms=TERMS):
    frame = parse(raw)
    if frame.kind is Kind.TERMS:
        return frame.terms(codec, terms.shape)
    return frame.payload(codec, terms) if frame.kind is Kind.PAYLOAD else frame.sum(codec, terms)


def body(raw: bytes) -> bytes:
    return raw[HEADER_SIZE:]


def refused(raw: bytes, message: str, error: type[Exception] = FrameError) -> None:
    with pytest.raises(error, match=message):
        read(raw)


def test_the_untouched_frames_are_fine():
    for raw in RAW.values():
        read(raw)
        assert forge(raw) == raw


@pytest.mark.parametrize(("kind", "bits"), [("terms", 1), ("sum", 1), ("payload", 0), ("payload", 4)])
def test_bits(kind, bits):
    refused(forge(RAW[kind], bits=bits), f"bits {bits} is wrong in a {kind} frame: 1..3 in a payload")


def test_hi_over_the_limit():
    refused(forge(RAW["payload"], hi=2**16 + 1), "shard range ends at hi=65537, the limit is 65536")


def test_lo_after_hi():
    refused(forge(RAW["payload"], lo=3, hi=2), "shard range 3..2 has lo > hi")


def test_size_over_the_limit():
    Header(kind=Kind.SUM, family=CODEC.family, size=MAX_SIZE, hi=3, length=24)
    refused(forge(RAW["payload"], size=MAX_SIZE + 1), "size .* is not in 0..68719476736 coordinates")


def test_size_of_another_tensor():
    refused(forge(RAW["payload"], size=151), "size differs", MismatchError)


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_hi_beyond_the_shards(kind):
    refused(forge(RAW[kind], hi=4), "shard range ends at hi=4, but the codec has 3 shards")


def test_range_of_terms():
    refused(forge(RAW["terms"], hi=1), "shard range of rows terms ends at hi=1")
    refused(forge(RAW["terms"], lo=1, hi=1), "shard range of terms begins at lo=1")


@pytest.mark.parametrize("length", [0, 8, 15, 17, 24])
def test_length_of_terms(length):
    refused(forge(RAW["terms"], body=bytes(length)), f"body length {length} of terms is not 16, that of rows terms")


@pytest.mark.parametrize(("table", "width"), [(50, 4), (49, 3), (-50, -3), (-1, 0), (0, 0), (2**62, 8), (150, 0)])
def test_a_table_of_another_size(table, width):
    said = f"a table of {table} rows of {width} values does not have the 150 of the tensor"
    refused(forge(RAW["terms"], body=struct.pack("<qq", table, width)), said)


def test_terms_cannot_refuse():
    refused(forge(RAW["terms"], flags=2, body=b""), "refuses 150 values, but rows encodes any such tensor")


def test_counts_flag():
    refused(forge(RAW["payload"], flags=1), "announces counts in a payload frame")
    refused(forge(RAW["sum"], flags=1, body=bytes(8)), "body length 8 is too short: the counts alone have 12")


@pytest.mark.parametrize("kind", ["terms", "payload", "sum"])
def test_another_codec(kind):
    other = Sparse(3)
    theirs = other.propose(np.ones(SHAPE, np.float32))
    with pytest.raises(MismatchError, match="codec family differs \\('sparse-.*' and 'rows-.*'\\)"):
        read(RAW[kind], other, theirs)
    with pytest.raises(MismatchError, match="codec family differs \\('rows-.*' and 'sparse-.*'\\)"):
        read(to_bytes(theirs))
    if kind != "terms":
        with pytest.raises(MismatchError, match="under these terms: .* .codec: one has Rows, the other has Sparse"):
            read(RAW[kind], CODEC, theirs)


def test_digest():
    refused(forge(RAW["payload"], digest=1), "terms digest differs", MismatchError)
    other = CODEC.propose(RowSlices((150,), np.array([1]), np.ones((1, 1), np.float32)))
    with pytest.raises(MismatchError, match="terms digest differs"):
        read(RAW["payload"], CODEC, other)


def test_rank_of_a_worker_that_is_not_there():
    refused(forge(RAW["payload"], rank=3), "rank 3 is not in 0..2")


def test_count_over_the_workers():
    refused(forge(RAW["sum"], count=4), "count 4 is over the headroom of 3")


@pytest.mark.parametrize(("counts", "message"), [
    ((1, 3, 1), "count 2 is not the largest of the 3 counts"),
    ((1, 1, 1), "count 2 is not the largest of the 3 counts"),
    ((2, 2, 2), "flags announces counts, but all are 2"),
    ((0, 2, 1), "segment 0 has rows, but no payloads are in it"),
])  # fmt: skip
def test_counts(counts, message):
    raw = RAW["uneven"]
    refused(forge(raw, body=np.array(counts, "<u4").tobytes() + body(raw)[12:]), message)


def test_rows_of_no_payloads():
    refused(forge(RAW["sum"], count=0), "segment 0 has rows, but no payloads are in it")
    assert read(forge(RAW["sum"], count=0, body=bytes(24))).count == 0


@pytest.mark.parametrize("kind", ["payload", "half", "sum", "uneven"])
def test_length(kind):
    raw = RAW[kind]
    refused(forge(raw, body=body(raw) + bytes(8)), "8 bytes follow the last segment of rows")
    start = 12 if kind == "uneven" else 0
    for cut in range(1, len(body(raw)) - start, 7 if ON_REFERENCE else 1):
        refused(forge(raw, body=body(raw)[:-cut]), "segment [0-2] (of rows is truncated|claims|of rows is not padded)")
    refused(forge(raw, body=body(raw)[:start]), "segment 0 of rows is truncated: its count is missing")


def test_fewer_or_other_shards_than_sent():
    refused(forge(RAW["payload"], hi=2), "bytes follow the last segment of rows")
    refused(forge(RAW["payload"], lo=1), "bytes follow the last segment of rows")
    shifted = to_bytes(PAYLOADS[0].part(0, 1))
    refused(forge(shifted, lo=1, hi=2), "segment 1 has rows that belong to other shards")


OWN = [row for row in range(50) if spec_shard(row, 3) == 1]
"""The rows of shard 1."""


def segment(numbers: list[int], *, claim: int | None = None, padding: bytes = b"") -> bytes:
    """A payload of shard 1 alone, in float16: 4 bytes for a number and 6 for its values."""
    data = struct.pack(f"<Q{len(numbers)}I", len(numbers) if claim is None else claim, *numbers)
    data += bytes(6 * len(numbers))
    return forge(to_bytes(HALF.part(1, 2)), body=data + (padding or bytes(-len(data) % 8)))


def test_a_segment_that_is_fine():
    assert read(segment(OWN[:3])).shards[0].numbers.tolist() == OWN[:3]
    assert read(segment([])).nbytes == 8


@pytest.mark.parametrize("claim", [4, 51, 2**31, 2**62, 2**64 - 1])
def test_more_rows_than_there_are(claim):
    refused(segment(OWN[:3], claim=claim), f"segment 0 claims {claim} rows, which 32 bytes cannot hold")


def test_more_rows_than_the_table_has():
    """Rows of no values cost only their numbers, and of a small table there are few."""
    x = RowSlices((2, 3), np.array([0]), np.ones((1, 3), np.float32))
    codec = example("one", (2, 3))[0]
    terms = codec.propose(x)
    raw = to_bytes(codec.encode(x, terms, rank=0))
    with pytest.raises(FrameError, match="segment 0 claims 3 rows"):
        read(forge(raw, body=struct.pack("<Q3I", 3, 0, 1, 2) + bytes(36)), codec, terms)


@pytest.mark.parametrize("numbers", [OWN[1::-1], [OWN[0], OWN[0]], [OWN[0], 50], [2**32 - 1]])
def test_row_numbers(numbers):
    refused(segment(numbers), "row numbers must ascend within 0..49")


def test_numbers_of_8_bytes_may_be_negative():
    codec, values = example("one", (2, 1))[0], np.ones((1, 1), np.float32)
    terms = codec.propose(RowSlices((2**32, 1), np.array([7]), values))
    raw = to_bytes(codec.encode(RowSlices((2**32, 1), np.array([7]), values), terms, rank=0))
    with pytest.raises(FrameError, match="row numbers must ascend within 0..4294967295"):
        read(forge(raw, body=struct.pack("<Qqf", 1, -7, 1) + bytes(4)), codec, terms)


def test_rows_of_another_shard():
    other = next(row for row in range(OWN[0], 50) if row not in OWN)
    refused(segment([OWN[0], other]), "segment 1 has rows that belong to other shards")


@pytest.mark.parametrize("padding", [b"\1" + bytes(5), bytes(5) + b"\1"])
def test_padding(padding):
    refused(segment(OWN[:1], padding=padding), "segment 0 of rows is not padded with zeros to a multiple of 8 bytes")


def test_padding_that_is_missing():
    refused(segment(OWN[:1], padding=bytes(5)), "segment 0 of rows is not padded with zeros to a multiple of 8 bytes")
