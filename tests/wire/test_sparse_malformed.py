"""One test per way that a frame of the Sparse codec can be bad; and that an index may be coded in any valid way."""

from __future__ import annotations

import numpy as np
import pytest

from sumwire import FrameError, Lattice, MismatchError
from sumwire.codec.sparse.codec import Sparse
from sumwire.wire.frame import parse, to_bytes
from sumwire.wire.header import HEADER_SIZE, Header
from sumwire.wire.limits import MAX_SIZE, Kind
from tests import ON_REFERENCE
from tests.wire.forging import forge
from tests.wire.test_sparse_frames import example

CODEC, TERMS, PAYLOADS = example("three", 700, 3)
HALF = example("three", 700, 3, "float16")[2][0]
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


def test_hi_may_be_more_than_the_coordinates():
    Header(kind=Kind.SUM, family=CODEC.family, size=0, hi=3, length=12)
    with pytest.raises(FrameError, match="size"):
        Header(kind=Kind.SUM, family=CODEC.family, size=MAX_SIZE + 1, hi=3, length=12)


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_hi_beyond_the_workers(kind):
    refused(forge(RAW[kind], hi=4), "shard range ends at hi=4, but the codec has 3 shards")


def test_range_of_terms():
    refused(forge(RAW["terms"], hi=1), "shard range of sparse terms ends at hi=1")
    refused(forge(RAW["terms"], lo=1, hi=1), "shard range of terms begins at lo=1")


def test_length_of_terms():
    refused(forge(RAW["terms"], body=bytes(4)), "body length 4 of terms is not 0, that of sparse terms")


def test_counts_flag():
    refused(forge(RAW["payload"], flags=1), "announces counts in a payload frame")
    refused(forge(RAW["sum"], flags=1, body=bytes(8)), "body length 8 is too short: the counts alone have 12")


@pytest.mark.parametrize("kind", ["terms", "payload", "sum"])
def test_another_codec(kind):
    lattice = Lattice(3, 4)
    theirs = lattice.propose(np.ones(700, np.float32))
    with pytest.raises(MismatchError, match="codec family differs \\('lattice-.*' and 'sparse-.*'\\)"):
        read(RAW[kind], lattice, theirs)
    with pytest.raises(MismatchError, match="codec family differs \\('sparse-.*' and 'lattice-.*'\\)"):
        read(to_bytes(theirs))
    if kind != "terms":
        with pytest.raises(MismatchError, match="under these terms: .* .codec: one has Sparse, the other has Lattice"):
            read(RAW[kind], CODEC, theirs)


def test_digest():
    refused(forge(RAW["payload"], digest=1), "terms digest differs", MismatchError)


def test_rank_of_a_worker_that_is_not_there():
    refused(forge(RAW["payload"], rank=3), "rank 3 is not in 0..2")


def test_count_over_the_workers():
    refused(forge(RAW["sum"], count=4), "count 4 is over the headroom of 3")


@pytest.mark.parametrize(("counts", "message"), [
    ((1, 3, 1), "count 2 is not the largest of the 3 counts"),
    ((1, 1, 1), "count 2 is not the largest of the 3 counts"),
    ((2, 2, 2), "flags announces counts, but all are 2"),
    ((0, 2, 1), "segment 0 has [0-9]+ entries, but no payloads are in it"),
])  # fmt: skip
def test_counts(counts, message):
    raw = RAW["uneven"]
    refused(forge(raw, body=np.array(counts, "<u4").tobytes() + body(raw)[12:]), message)


def test_entries_of_no_payloads():
    refused(forge(RAW["sum"], count=0), "segment 0 has [0-9]+ entries, but no payloads are in it")


@pytest.mark.parametrize("kind", ["payload", "half", "sum", "uneven"])
def test_length(kind):
    raw = RAW[kind]
    refused(forge(raw, body=body(raw) + bytes(4)), "body length: .* bytes of segments, but those of shards 0..3 end at")
    for cut in range(1, len(body(raw)) - 12, 37 if ON_REFERENCE else 3):
        refused(forge(raw, body=body(raw)[:-cut]), "segment [0-2] at byte .* is bad: .*(truncated|never ends)")
    refused(forge(raw, body=b""), "segment 0 at byte 0 of the body is bad: .*truncated|too short")


def test_fewer_or_other_shards_than_sent():
    refused(forge(RAW["payload"], hi=2), "body length: .* bytes of segments, but those of shards 0..2 end at")
    refused(forge(RAW["payload"], lo=1), "segment|body length")


def replaced(segments: list[bytes]) -> bytes:
    """A payload of shards 0..2 of 3 with these bytes for shard 1."""
    first = PAYLOADS[0].part(0, 1).data.tobytes()
    last = PAYLOADS[0].part(2, 3).data.tobytes()
    return forge(RAW["payload"], body=first + b"".join(segments) + last)


@pytest.mark.parametrize(("index", "message"), [
    (b"\x06\0\0\0", "its mode is unknown"),
    (b"\0\1\0\0", "parameter k is out of range"),
    (b"\1\x20\1\0\0\0\0\0", "parameter k is out of range"),
    (b"\1\0\0\0\0\0\0\0", "count does not match"),
    (b"\1\0\1\0\0\0\2\0", "last byte are not zero"),
    (b"\0\0\1\0", "what fills it up to 4 bytes is not 0"),
    (b"\0\0\0\1", "what fills it up to 4 bytes is not 0"),
])  # fmt: skip
def test_index(index, message):
    refused(replaced([index, bytes(4)]), f"segment 1 at byte [0-9]+ of the body is bad: .*{message}")


def test_padding_after_values():
    part = HALF.part(0, 1)
    read(to_bytes(part))
    # Mode 1 with one entry, at coordinate 0: 7 bytes, a zero, the value, two zeros.
    good = b"\1\0\1\0\0\0\0\0" + b"\0\x3c" + b"\0\0"
    assert read(forge(to_bytes(part), body=good)).sizes == (12,)
    refused(forge(to_bytes(part), body=good[:-1] + b"\1"), "what fills it up to 4 bytes is not 0")


def test_any_valid_coding_is_read_and_written_again():
    """The shortest coding is the sender's duty; a longer one gives the same tensor."""
    x = np.zeros(64, np.float32)
    x[0] = 1
    codec = Sparse(1)
    terms = codec.propose(x)
    value = np.float32(1).tobytes()
    codes = [
        b"\1\0\1\0\0\0\0\0" + value,
        b"\1\1\1\0\0\0\0\0" + value,
        b"\2\0\1\0\0\0\0\0" + value,
        b"\3\0\1" + bytes(9) + value,
        b"\4\0\1\1" + bytes(8) + value,
        b"\5\0\0\0" + value + bytes(63 * 4),
    ]
    shortest = to_bytes(codec.encode(x, terms, rank=0))
    assert body(shortest) == codes[0]
    for code in codes:
        code += bytes(-len(code) % 4)
        raw = forge(shortest, body=code)
        back = parse(raw).payload(codec, terms)
        np.testing.assert_array_equal(codec.sum_of(back), x)
        assert to_bytes(back) == raw
