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
    "53554d570104010000000000020000007b6f76c087a9ee2203000000000000000b050000000000000eab0851f8fc630d"
    "0000000017000000180200000000000000000000b9608c0ae3e2e3e2e0000000e3e2e2e2e4eaebeae3e2e2e3e2cdd160"
    "6c6d989c000000515d5b5d6ba8a0a8556c75560000001e2786fb16a6a499e1a36aab42a885e5991d99bbaee9c4a66ed7"
    "62b79bf45c5ad6dca955e9a946661fd88295ae977e1ea2e5a94595053b5565289559784ba3560000fe850000ee304369"
    "628258bca4806c42668759ccc4cb449fbb42563286484d7441cb98d92573a77fa74fa73aad3ec4dbd57ddb565269b3bb"
    "58653837947f9e1f5ab0999f5ec81b8a2f7d7366605baed52843d27873692f9c7c7eb48bd038557fce3977702a708a51"
    "c4939a80a8c9acbccc83afbd967b46861a766144adacba68857dd13c4dd3969b794f8d388f75aec96634a74e51358852"
    "3da5a0d7b7b1989ee41853269c89707d918243bf8be64c42405a30b7d2a53d667079aaa35aa08cc6b1317635a561e8a5"
    "d56d9686b490514ecb9932657d64d62f53984f9843df83827998536fca7a6ebc3c724099736645312966235177a2825b"
    "e5957dc13961799b9257289bc840b36198bc7d965e367c6a78f247a041a6b46198bc7e965f367d6a78f246a041a6b360"
    "98bc7d965f367c6a79f247a041a6b46199bb7e965f367c6b79f247a041a6eee6ded7fad46efb6ae6be45ded426306fe7"
    "da479256ef381e33c7952796665de1665a5a969dc6e19d1e8abb7aa6d496a9e762fb96e84dead5cc6d66e9a9c8a22fda"
    "92a6aea66d1ea2d47904d5592b651a2c95587d57b71abc0c376912fa44e01604"
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
