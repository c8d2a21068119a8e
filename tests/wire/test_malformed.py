"""One test per way that a frame can be bad: each is refused, and the message names the field."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace

import numpy as np
import pytest

from sumwire import FrameError, InputError, Lattice, MismatchError
from sumwire.wire import header
from sumwire.wire.frame import parse, parse_header, to_bytes
from sumwire.wire.header import HEADER_SIZE, Header
from sumwire.wire.limits import MAX_BLOCKS, MAX_BODY, MAX_COUNT, MAX_SIZE, Kind
from tests import ON_REFERENCE
from tests.wire import fuzz
from tests.wire.forging import forge, read_field

SIZE = 64 * 4 + 16 + 4 + 2 + 1
"""Four whole blocks, then 16, 4, 2 and 1: the last three share bytes."""

CODEC = Lattice(2, 4, block=64, energy=1.0, widths="energy", seed=7)
X = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
BYTE_CODEC = Lattice(4, 4, block=64, widths="fixed", granularity=30, lane_bits=8, seed=7)


def made(codec=CODEC):
    terms = codec.propose(X)
    return terms, [codec.encode(X, terms, rank=rank, round_id=3) for rank in range(2)]


TERMS, PAYLOADS = made()
EXACT_CODEC = replace(CODEC, terms="exact")
EXACT = to_bytes(EXACT_CODEC.propose(X), round_id=3)
UNEVEN = PAYLOADS[0] + PAYLOADS[1].part(1, 3)
RAW = {
    "terms": to_bytes(TERMS, round_id=3),
    "payload": to_bytes(PAYLOADS[0]),
    "sum": to_bytes(PAYLOADS[0] + PAYLOADS[1]),
    "uneven": to_bytes(UNEVEN),
}
KINDS = ["terms", "payload", "sum"]


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


REFUSAL = to_bytes(CODEC.refuse((SIZE,)), round_id=3)


def test_a_refusal_is_a_header_alone():
    assert len(REFUSAL) == HEADER_SIZE
    assert forge(REFUSAL) == REFUSAL
    terms = parse(REFUSAL).terms(CODEC, (SIZE,))
    assert not terms.encodable
    assert to_bytes(terms, round_id=3) == REFUSAL
    assert to_bytes(terms | TERMS, round_id=3) == to_bytes(TERMS | terms, round_id=3) == REFUSAL


def test_a_refusal_costs_no_memory():
    terms = parse(forge(REFUSAL, size=MAX_SIZE)).terms(CODEC, (MAX_SIZE,))
    assert terms.scales.base.nbytes == 4
    assert terms.nbytes == 0
    assert terms == terms | CODEC.refuse((MAX_SIZE,))


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_a_refusal_where_there_are_no_terms(kind):
    refused(forge(RAW[kind], flags=2), f"flags 0x0002 refuses a tensor in a {kind} frame")


def test_a_refusal_of_nothing():
    refused(forge(REFUSAL, size=0), "refuses 0 values, but lattice encodes any such tensor")


@pytest.mark.parametrize(("codec", "name"), [(2, "sparse"), (3, "sketch"), (4, "rows"), (5, "snapshot")])
def test_a_refusal_by_a_codec_that_encodes_everything(codec, name):
    refused(forge(REFUSAL, codec=codec), f"refuses {SIZE} values, but {name} encodes any such tensor")


def test_a_refusal_with_blocks():
    refused(forge(REFUSAL, hi=8), "refusing terms ends at hi=8, body length 0: both are 0")


def test_a_refusal_with_a_body():
    refused(forge(REFUSAL, body=bytes(32)), "refusing terms ends at hi=0, body length 32: both are 0")


def test_a_refusal_with_counts():
    refused(forge(REFUSAL, flags=3), "flags 0x0003 announces counts in a terms frame")


# The header, whatever the kind


@pytest.mark.parametrize("kind", KINDS)
def test_magic(kind):
    refused(forge(RAW[kind], magic=b"SUMX"), "magic b'SUMX' is not b'SUMW'")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_version(version):
    refused(forge(RAW["payload"], version=version), f"wire version {version} is not 1")


@pytest.mark.parametrize("kind", [0, 5, 255])
def test_kind(kind):
    refused(forge(RAW["payload"], kind=kind), f"kind {kind} is not")


@pytest.mark.parametrize("codec", [0, 6, 255])
def test_codec_tag(codec):
    refused(forge(RAW["payload"], codec=codec), f"codec tag {codec} is not 1")


@pytest.mark.parametrize(("codec", "name"), [(2, "sparse"), (3, "sketch"), (4, "rows"), (5, "snapshot")])
def test_codec_tag_of_another_codec(codec, name):
    bad = forge(RAW["sum"], codec=codec, lo=0, hi=0)
    refused(bad, f"codec family differs \\('lattice-[0-9a-f]+' and '{name}-[0-9a-f]+'\\)", MismatchError)


@pytest.mark.parametrize("flags", [4, 7, 1 << 15])
@pytest.mark.parametrize("kind", KINDS)
def test_unknown_flags(kind, flags):
    refused(forge(RAW[kind], flags=flags), f"flags 0x{flags:04x} has bits unknown")


def test_reserved_bytes():
    refused(forge(RAW["payload"], reserved=1), "reserved bytes")


def test_rank_of_a_worker_that_is_not_there():
    refused(forge(RAW["payload"], rank=CODEC.workers), f"rank {CODEC.workers} is not in 0..{CODEC.workers - 1}")


@pytest.mark.parametrize("kind", ["terms", "sum"])
def test_rank_where_there_is_no_sender(kind):
    refused(forge(RAW[kind], rank=1), f"rank 1 is wrong in a {kind} frame")


@pytest.mark.parametrize("size", [MAX_SIZE + 1, 2**64 - 1])
def test_size_over_the_limit(size):
    refused(forge(RAW["payload"], size=size), f"size {size} is not in 0..{MAX_SIZE}")


def test_lo_after_hi():
    refused(forge(RAW["payload"], lo=3, hi=2), "lo > hi")


@pytest.mark.parametrize("hi", [MAX_BLOCKS + 1, 2**32 - 1])
def test_hi_over_the_limit(hi):
    refused(forge(RAW["payload"], size=MAX_SIZE, hi=hi), f"hi={hi}, the limit is {MAX_BLOCKS}")


def test_hi_beyond_the_coordinates():
    refused(forge(RAW["payload"], hi=SIZE + 1), f"hi={SIZE + 1}, but size {SIZE}")


@pytest.mark.parametrize("length", [MAX_BODY + 1, 2**64 - 1])
def test_length_over_the_limit(length):
    for read_it in (parse, parse_header):
        with pytest.raises(FrameError, match=f"body length {length} is over the limit"):
            read_it(forge(RAW["payload"], length=length))


def test_length_over_the_readers_limit():
    length = read_field(RAW["payload"], "length")
    assert parse_header(RAW["payload"], max_body=length).length == length
    with pytest.raises(FrameError, match=f"body length {length} is over this reader's limit of {length - 1}"):
        parse_header(RAW["payload"], max_body=length - 1)


def test_count_over_the_limit():
    refused(forge(RAW["sum"], count=MAX_COUNT + 1), f"count {MAX_COUNT + 1} is not in")


@pytest.mark.parametrize("kind", KINDS)
def test_truncated(kind):
    raw = RAW[kind]
    for length in range(len(raw)):
        refused(raw[:length], "truncated")
    with pytest.raises(FrameError, match="truncated: 71 bytes, its header alone has 72"):
        parse_header(raw[:71])


@pytest.mark.parametrize("kind", KINDS)
def test_trailing_bytes(kind):
    refused(RAW[kind] + b"\0", "1 trailing bytes")
    refused(RAW[kind] * 2, "trailing bytes")


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_noticed_anywhere(kind):
    for at in range(0, len(RAW[kind]), 7 if ON_REFERENCE else 1):
        raw = bytearray(RAW[kind])
        raw[at] ^= 1 << at % 8
        with pytest.raises(FrameError):
            parse(raw)


def test_crc():
    crc = read_field(RAW["payload"], "crc")
    refused(forge(RAW["payload"], fix_crc=False, crc=crc ^ 1), f"CRC 0x{crc:08x} is not the 0x{crc ^ 1:08x}")


# The header, by kind


@pytest.mark.parametrize(("kind", "bits"), [("terms", 4), ("sum", 4), ("payload", 0), ("payload", 9)])
def test_bits_by_kind(kind, bits):
    refused(forge(RAW[kind], bits=bits), f"bits {bits} is wrong in a {kind} frame")


@pytest.mark.parametrize(("kind", "count"), [("terms", 1), ("payload", 0), ("payload", 2)])
def test_count_by_kind(kind, count):
    refused(forge(RAW[kind], count=count), f"count {count} is wrong in a {kind} frame")


@pytest.mark.parametrize("kind", ["terms", "payload"])
def test_counts_flag_by_kind(kind):
    refused(forge(RAW[kind], flags=1), f"flags 0x0001 announces counts in a {kind} frame")


def test_digest_in_terms():
    refused(forge(RAW["terms"], digest=1), "terms digest 0x1 in a terms frame must be 0")


def test_split_terms():
    raw = RAW["terms"]
    refused(forge(raw, lo=1, body=body(raw)[1:]), "begins at lo=1")


def test_length_of_terms():
    raw = RAW["terms"]
    for bad in (body(raw)[:-1], body(raw)[:-4], body(raw) + bytes(4), b""):
        refused(forge(raw, body=bad), f"body length {len(bad)} of terms is not 10 or 32, that of lattice terms")


def test_terms_of_the_other_form():
    refused(forge(RAW["terms"], body=bytes(32)), "body length 32 of terms is not 10, that of terms='byte'")
    with pytest.raises(FrameError, match="body length 10 of terms is not 32, that of terms='exact'"):
        read(forge(EXACT, body=bytes(10)), EXACT_CODEC)


def test_length_of_counts():
    refused(forge(RAW["uneven"], body=bytes(31)), "body length 31 is too short: the counts alone have 32")


# What the codec and the terms say


@pytest.mark.parametrize("kind", KINDS)
def test_fingerprint(kind):
    refused(forge(RAW[kind], fingerprint=bytes(8)), "codec family differs", MismatchError)


@pytest.mark.parametrize("kind", KINDS)
def test_size_of_another_tensor(kind):
    refused(forge(RAW[kind], size=SIZE + 1), f"size differs \\({SIZE} and {SIZE + 1}\\)", MismatchError)


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_digest_of_other_terms(kind):
    refused(forge(RAW[kind], digest=5), "terms digest differs .* and '0x5'", MismatchError)


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_terms_of_another_family(kind):
    other = replace(CODEC, seed=8)
    with pytest.raises(
        MismatchError, match="under these terms: codec family differs .seed: one has .*, the other has 8"
    ):
        read(RAW[kind], terms=other.propose(X))


@pytest.mark.parametrize("kind", KINDS)
def test_asking_for_what_the_frame_does_not_hold(kind):
    frame = parse(RAW[kind])
    ask = {
        "terms": lambda: frame.terms(CODEC, (SIZE,)),
        "payload": lambda: frame.payload(CODEC, TERMS),
        "sum": lambda: frame.sum(CODEC, TERMS),
    }
    for other in set(KINDS) - {kind}:
        with pytest.raises(FrameError, match=f"kind is {kind}, not {other}"):
            ask[other]()


def test_hi_of_terms():
    raw = RAW["terms"]
    refused(forge(raw, hi=7, body=body(raw)[:-1]), "hi=7, but size 279 has 8 blocks")
    refused(forge(raw, hi=9, body=body(raw) + bytes(1)), "hi=9, but size 279 has 8 blocks")


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_hi_beyond_the_terms(kind):
    refused(forge(RAW[kind], hi=9), "hi=9, but the terms have 8 blocks")


@pytest.mark.parametrize("kind", ["payload", "sum"])
@pytest.mark.parametrize(("lo", "hi"), [(0, 6), (0, 7), (6, 8), (7, 8), (6, 6)])
def test_edges_within_a_byte(kind, lo, hi):
    refused(forge(RAW[kind], lo=lo, hi=hi), f"block range {lo}..{hi} has an edge between blocks that share a byte")


def test_bits_over_the_family():
    refused(forge(RAW["payload"], bits=5), "bits 5 is over the 4 of the family")


def test_bits_of_another_member_give_another_length():
    refused(forge(RAW["payload"], bits=2), "body length: .* bytes of index bits")


def test_bits_below_the_narrowest_width_allowed():
    codec = Lattice(4, 4, block=64, widths=(0, 4, 8), seed=7)
    terms, payloads = made(codec)
    with pytest.raises(FrameError, match="bits 2 is wrong: .* is not in 4..4"):
        read(forge(to_bytes(payloads[0]), bits=2), codec, terms)


@pytest.mark.parametrize(("kind", "what"), [("payload", "index"), ("sum", "lane"), ("uneven", "lane")])
def test_length_that_the_terms_do_not_imply(kind, what):
    raw = RAW[kind]
    for bad in (body(raw)[:-1], body(raw) + b"\0"):
        refused(forge(raw, body=bad), f"body length: .* bytes of {what} bits, the terms imply")
    refused(forge(raw, hi=4), "body length|count")


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_padding(kind):
    tail = (PAYLOADS[0] if kind == "payload" else PAYLOADS[0] + PAYLOADS[1]).part(5, 8)
    raw = to_bytes(tail)
    widths = tail.widths if kind == "payload" else tail._lane_bits()
    used = int(TERMS.sizes[5:] @ widths.astype(int)) % 8
    assert used
    read(raw)
    refused(forge(raw, body=raw[HEADER_SIZE:-1] + bytes([raw[-1] | 0x80])), "padding")


# Scales


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, -1.0, -0.0, -1e-40, 2.0**115 * 1.0001, 3e38])
def test_scales(bad):
    scales = np.frombuffer(body(EXACT), np.float32).copy()
    scales[5] = bad
    with pytest.raises(FrameError, match="scale .* of block 5 is not in 0.."):
        read(forge(EXACT, body=scales.tobytes()), EXACT_CODEC)


@pytest.mark.parametrize("good", [0.0, 1e-45, 2.0**115])
def test_scales_at_their_limits(good):
    scales = np.frombuffer(body(EXACT), np.float32).copy()
    scales[5] = good
    assert read(forge(EXACT, body=scales.tobytes()), EXACT_CODEC).scales[5] == np.float32(good)


def with_codes(base: int, *codes: int) -> bytes:
    """Terms whose last blocks are of scale 0."""
    return forge(RAW["terms"], body=base.to_bytes(2, "little") + bytes(codes).ljust(8, b"\0"))


@pytest.mark.parametrize("base", [1952, 0x7FFF, 0x8000, 0xFFFF])
def test_base_of_scales(base):
    refused(with_codes(base, 255), f"base {base} of the scales is not in 0..1951")


@pytest.mark.parametrize(("base", "top"), [(1000, 254), (1000, 1), (1000, 0), (1, 0), (0, 254)])
def test_the_largest_scale_has_the_largest_code(base, top):
    refused(with_codes(base, top, top), f"the largest code is {top} over base {base}: it must be 255, or 0 over base 0")


def test_codes_below_the_smallest_scale():
    refused(with_codes(253, 255, 1), "code 1 of block 1 is below the smallest scale, over base 253")
    refused(with_codes(0, 255, 0, 254), "code 254 of block 2 is below the smallest scale, over base 0")


@pytest.mark.parametrize(
    ("base", "code", "scale"), [(1951, 255, 2.0**115), (0, 255, 2.0**-149), (254, 1, 2.0**-149), (0, 0, 0.0)]
)
def test_codes_at_their_limits(base, code, scale):
    found = read(with_codes(base, *([255, code] if code else [])))
    assert found.scales[1] == np.float32(scale)
    assert found.encodable


# Counts and lanes


def test_count_over_the_headroom():
    assert CODEC.headroom == 2
    refused(forge(RAW["sum"], count=3), "count 3 is over the headroom of 2")
    refused(forge(RAW["uneven"], count=3), "count 3 is over the headroom of 2")


@pytest.mark.parametrize("bad", [3, 2**31, 2**32 - 1])
def test_a_blocks_count_over_the_most(bad):
    raw = RAW["uneven"]
    counts = np.frombuffer(body(raw)[:32], np.uint32).copy()
    counts[2] = bad
    refused(forge(raw, body=counts.tobytes() + body(raw)[32:]), "count 2 is not the largest of the 8 counts")


def test_count_over_every_blocks():
    raw = RAW["uneven"]
    counts = np.ones(8, np.uint32)
    refused(forge(raw, body=counts.tobytes() + body(raw)[32:]), "count 2 is not the largest of the 8 counts")


def test_counts_without_need():
    raw = RAW["sum"]
    refused(forge(raw, flags=1, body=np.full(8, 2, np.uint32).tobytes() + body(raw)), "flags announces counts")


def test_counts_of_no_blocks():
    raw = to_bytes(PAYLOADS[0].part(2, 2) + PAYLOADS[1].part(2, 2))
    assert read(raw).count == 2
    refused(forge(raw, flags=1), "count 2 is not the largest of the 0 counts")


@pytest.mark.parametrize("count", [0, 1])
def test_lanes_over_a_smaller_count(count):
    refused(forge(RAW["sum"], count=count), f"a lane of block 0 is over .* that {count} payloads")


def test_lanes_of_a_block_that_nobody_sent():
    total = UNEVEN
    raw, block = RAW["uneven"], 3
    counts = total.counts.copy()
    counts[block] = 0
    refused(forge(raw, body=counts.tobytes() + body(raw)[32:]), "a lane of block 3 is over 0, the most that 0 payloads")


@pytest.mark.parametrize("name", ["byte", "word", "double", "packed"])
@pytest.mark.parametrize("at", [0, 63, 64, 255, 256, 271, 272, 275, 276, 277, 278])
def test_any_lane_over_count_times_granularity(name, at):
    """Whatever the width in memory and the place: one step too many is refused, the limit itself is not."""
    lane_bits = {"byte": 8, "word": 16, "double": 32, "packed": None}[name]
    codec = Lattice(4, 4, block=64, widths="fixed", granularity=30, lane_bits=lane_bits, seed=7)
    terms, payloads = made(codec)
    total = codec.add(payloads)
    width = len(total.lanes) // SIZE
    lanes = total.lanes.copy().view(f"u{width}")
    lanes[at] = 60
    read(to_bytes(replace(total, lanes=lanes.view(np.uint8))), codec, terms)
    lanes[at] = 61
    block = next(k for k in range(len(terms.sizes)) if at < terms.span(k)[1])
    with pytest.raises(FrameError, match=f"a lane of block {block} is over 60, the most that 2 payloads"):
        read(to_bytes(replace(total, lanes=lanes.view(np.uint8))), codec, terms)


# The sender's side


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("size", MAX_SIZE + 1, "size"),
        ("hi", MAX_BLOCKS + 1, "hi"),
        ("lo", -1, "block range"),
        ("length", MAX_BODY + 1, "body length"),
        ("round_id", 2**64, "round_id"),
        ("digest", 2**64, "digest"),
        ("count", -1, "count"),
    ],
)
def test_a_header_cannot_be_made_beyond_the_limits(field, value, message):
    good = {"kind": Kind.SUM, "family": CODEC.family, "size": MAX_SIZE, "hi": MAX_BLOCKS, "length": MAX_BODY}
    Header(**good)
    with pytest.raises(FrameError, match=message):
        Header(**(good | {field: value}))


def test_a_family_without_frames():
    with pytest.raises(InputError, match="a mean codec has no frames for a server: use one of lattice, "):
        Header(kind=Kind.SUM, family="mean-0123456789abcdef", size=0, hi=0, length=0)


VALID = {f"valid {codec} {kind}" for codec in ("lattice", "sparse", "sketch", "rows", "snapshot") for kind in KINDS}
VALID |= {"valid lattice narrow"}
DEEP = {
    "bytes": VALID | {"a lane of block ~", "segment ~ at byte ~"},
    "structure": VALID
    | {"a lane of block ~", "segment ~ at byte ~", "count ~ is over the", "escapes are not in ascending"}
    | {"segment ~ of rows is", "segment ~ has rows that", "row numbers must ascend within", "a table of ~ rows"}
    | {"a snapshot of nothing but", "base ~ of the scales"},
    "control": {
        "valid control codec",
        "codec rows cannot be built:",
        "codec snapshot cannot be built:",
        "valid control agreed",
        "codec lattice cannot be built:",
        "the body of HELLO is",
    },
}
"""What shows that a target reaches the last checks."""


@pytest.mark.skipif(ON_REFERENCE, reason="takes a hundred times as long, and reads the same")
@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_fuzz(target):
    """A fixed number of turns, however long they take; `make fuzz` goes on for as long as one likes."""
    turns = 1000 if target == "control" else 3000  # a turn of control messages takes longer
    assert DEEP[target] <= set(fuzz.run(range(turns), 20240229, targets=[target]))


def test_big_endian_hosts_are_told(monkeypatch):
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(ImportError, match="little-endian"):
        runpy.run_path(header.__file__)
