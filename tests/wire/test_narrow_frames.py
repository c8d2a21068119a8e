"""Frames of narrow sums: golden bytes, what is written is read again, and one test per way to be malformed."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import or_

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sumwire import FrameError, Lattice, MismatchError, Sparse
from sumwire.codec.lattice.narrow import NarrowSum
from sumwire.wire.frame import parse, to_bytes
from sumwire.wire.header import HEADER_SIZE
from sumwire.wire.limits import Kind
from tests.strategies import codecs, gradients
from tests.wire.forging import forge

CODEC = Lattice(2, 4, granularity=30, clip=1 / 32, block=64, seed=7, lane_bits=6, down_bits=3)
SIZE = 64 * 20 + 8 + 2 + 1
LOUD = np.repeat([1.0, 0.0, 100.0, 1e-3, 1.0], 260)[:SIZE]
XS = [(np.sin(np.arange(SIZE) * k) * LOUD).astype(np.float32) for k in (1.0, 1.3)]
TERMS = CODEC.propose(XS[0]) | CODEC.propose(XS[1])
PAYLOADS = [CODEC.encode(x, TERMS, rank=rank, round_id=3) for rank, x in enumerate(XS)]
TOTAL = CODEC.add(PAYLOADS).narrow()
BLOCKS = len(TERMS.sizes)
RAW = to_bytes(TOTAL)
UNEVEN = to_bytes(CODEC.add([PAYLOADS[0], PAYLOADS[1].part(2, 7)]).narrow())

GOLDEN = (
    "53554d57010401000000000002000000f5ab90558e1f3bf603000000000000000b050000000000002e0ff6137d3fd24f"
    "0000000017000000180200000000000000000000f4d247b9e3e3e3e3e1000000e3e3e3e3e5eaebe9e3e3e3e3e2cdd558"
    "8c6d559e0000006d5454594fa8a0af536c52570000001e2786fb16a6a499e0a36aab42a885e5991d99bbaae9c4a66ed7"
    "66b79bb45c5ad6dca955e9a946661fd88295ae977e1ea1e1b94491063b556528955d784fa3560000fec60000ee384368"
    "628259bca4806c41668759ccc4cb449fbb42563286484c7441cb98da2573a67fa84fa639ad3dc4dbd57ddb565269b3b7"
    "57653a3794809e1e5ab099a05ec71a8b2f7e7365665baed02843d37772692f9e7d7eb68bd137567dce38776f2f708a50"
    "c4949b80a8c9adbdcd84afbe957b458419766144a6adbb69847ed23c4dd4959c784e8e389075aeca6534a84d50348852"
    "3ca6a1d7b7b0999ee11752269c896f7d918243bf8be64c413f5930b7d2a63c666f78a3a45a9f8cc6b2317735a661e8a4"
    "d66d9787ae915155cb9932667d63d72e52984f9844df83827998536fca7b6ebc3c714099726545312865255177a28263"
    "e6947dc13f60799b9255269bc83fb56099bd7e975d357c6a78f045a140a7b56099bd7d975d357d6a78f045a140a7b55f"
    "99bd7e965e357d6a79f045a240a7b66099bd7e965d357d6b78f045a140a7eee6ded7fad46efb6ae6be45ded426306fe7"
    "da47d256ef381e33c3952797665de0565a5a969dc6e19d1e8abb7aa6c496a9e762fb96e84daad5cc6d66e9a9c8a22fda"
    "52a6bfa67d1ea2d47904d5592b651a2c95587d57b71abc0c376912fa44e03604"
)


def read(raw: bytes, codec: Lattice = CODEC) -> NarrowSum:
    found = parse(raw).sum(codec, TERMS)
    assert isinstance(found, NarrowSum)
    return found


def with_byte(at: int, value: int, raw: bytes = RAW) -> bytes:
    body = bytearray(raw[HEADER_SIZE:])
    body[at] = value
    return forge(raw, body=bytes(body))


def refused(raw: bytes, message: str, error: type[Exception] = FrameError) -> None:
    with pytest.raises(error, match=message):
        read(raw)


def test_golden() -> None:
    assert RAW.hex() == GOLDEN
    assert parse(RAW).kind is Kind.NARROW


@pytest.mark.parametrize("raw", [RAW, UNEVEN])
def test_what_is_written_is_read_again(raw: bytes) -> None:
    again = read(raw)
    assert to_bytes(again) == raw
    lo, hi = CODEC.edges(TERMS, 2)[1:]
    part = again.part(lo, hi)
    assert to_bytes(read(to_bytes(part))) == to_bytes(part)
    assert CODEC.decode(again).tobytes() == CODEC.decode(read(raw)).tobytes()


@given(codecs(rotate=True), gradients(max_workers=3), st.floats(1, 12), st.integers(1, 4))
def test_any_codec(codec: Lattice, xs: list[np.ndarray], bits: float, shards: int) -> None:
    assume(xs[0].size <= 3000)
    codec, xs = replace(codec, down_bits=bits), xs[: codec.workers]
    terms = reduce(or_, [codec.propose(x) for x in xs])
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    total = codec.add([*payloads[1:], payloads[0]]).narrow()
    frames = [to_bytes(total.part(lo, hi)) for lo, hi in pairwise(codec.edges(terms, shards))]
    parts = [parse(raw).sum(codec, terms) for raw in frames]
    assert [to_bytes(part) for part in parts] == frames
    joined = codec.side_by_side(parts)
    assert to_bytes(joined) == to_bytes(total)
    assert codec.decode(joined).tobytes() == codec.decode(total).tobytes()


def test_length() -> None:
    refused(forge(RAW, body=RAW[HEADER_SIZE:] + b"\0"), "body length: .* bytes of a narrow sum, the terms imply")
    refused(forge(RAW, body=RAW[HEADER_SIZE:-1]), "body length: .* bytes of a narrow sum, the terms imply")


def test_codec_of_lanes() -> None:
    with pytest.raises(FrameError, match="sums of this codec travel as lanes"):
        parse(RAW).sum(CODEC.for_plain_sums(), TERMS)
    with pytest.raises(FrameError, match="body length: .* the terms imply"):
        parse(RAW).sum(replace(CODEC, down_bits=4), TERMS)


def test_other_codecs_have_no_narrow_sums() -> None:
    codec, x = Sparse(2), np.ones(10, np.float32)
    raw = to_bytes(codec.add([codec.encode(x, codec.propose(x), rank=0)]))
    with pytest.raises(FrameError, match="kind is narrow in a sparse frame: only lattices"):
        parse(forge(raw, kind=Kind.NARROW))


def test_fields_that_narrow_sums_do_not_use() -> None:
    refused(forge(RAW, bits=3), "bits 3 is wrong in a narrow frame")
    refused(forge(RAW, rank=1), "rank 1 is wrong in a narrow frame")
    refused(forge(RAW, digest=5), "terms digest differs", MismatchError)
    refused(forge(RAW, count=CODEC.headroom + 1), "over the headroom")
    refused(forge(RAW, flags=1), "counts")


def test_range() -> None:
    refused(forge(RAW, lo=1), "block range 1..23 is not of whole segments of 16 blocks")
    refused(forge(RAW, hi=16), "body length")
    refused(forge(RAW, hi=BLOCKS + 1), "block range ends at")


def test_coarse_where_nothing_was_added() -> None:
    silent = int(np.flatnonzero(TERMS.scales == 0)[0])
    refused(with_byte(silent, 200), f"coarse of block {silent} is 200, but nothing was added there")


def test_fine_of_lanes_and_of_nothing() -> None:
    small = int(np.flatnonzero(TERMS.sizes == 8)[0])
    assert RAW[HEADER_SIZE + small]
    refused(with_byte(BLOCKS + small, 1), f"fine of block {small} is 1, but it has no narrow indices")
    silent = int(np.flatnonzero(TERMS.scales == 0)[0])
    refused(with_byte(BLOCKS + silent, 1), f"fine of block {silent} is 1, but it has no narrow indices")


def test_padding() -> None:
    """All blocks of a segment but one are said to be zero: what it does not use must be 0."""
    body = bytearray(RAW[HEADER_SIZE:])
    body[1:16] = bytes(15)
    body[BLOCKS : BLOCKS + 16] = bytes(16)
    refused(forge(RAW, body=bytes(body)), r"padding after the last index of blocks 0\.\.16 is not 0")
    refused(with_byte(len(RAW) - HEADER_SIZE - 1, 255), "padding after the last index|a lane of block")


def test_lanes_beyond_their_count() -> None:
    tail = slice(BLOCKS - 3, BLOCKS)
    sizes, widths = TERMS.sizes[tail], TERMS.layout(CODEC).lane_bits[tail].astype(int)
    body = bytearray(RAW[HEADER_SIZE:])
    start = len(body) - (int(sizes @ widths) + 7) // 8
    body[start : start + int(sizes[0] * widths[0]) // 8] = b"\xff" * (int(sizes[0] * widths[0]) // 8)
    refused(
        forge(RAW, body=bytes(body)), f"a lane of block {BLOCKS - 3} is over 122, the most that 2 payloads add up to"
    )


def test_truncated() -> None:
    refused(RAW[:-1], "truncated")
    for at in (5, HEADER_SIZE, HEADER_SIZE + BLOCKS, len(RAW) - 1):
        refused(RAW[:at] + bytes([RAW[at] ^ 1]) + RAW[at + 1 :], "CRC|kind")
