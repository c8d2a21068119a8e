"""Frames of the Sketch codec: round trips, golden bytes, and headers that it may not have.

tests/wire/test_sketch_body.py has one test per way that a body can be bad.
Regenerate the golden bytes with `python -m tests.wire.test_sketch_frames`: see test_golden.py.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache, reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import FrameError, MismatchError
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sparse.codec import Sparse
from sumwire.wire.frame import buffers, parse, to_bytes
from sumwire.wire.header import HEADER_SIZE, Header
from sumwire.wire.limits import Kind
from tests.wire.forging import forge
from tests.wire.test_golden import ROUND, spec_crc32c, spec_header

CODECS = {"one": Sketch(1), "three": Sketch(3, seed=5), "blocks": Sketch(3, block=8), "many": Sketch(70)}

names = st.sampled_from(sorted(CODECS))
sizes = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 4096, 40_000]), st.integers(0, 3000))
rounds = st.sampled_from([0, 7, 2**64 - 1])


def tensor(size: int, seed: int, escapes: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.zeros(size, np.float32)
    some = rng.integers(0, size, min(size, 30)) if size else []
    x[some] = rng.standard_normal(len(some))
    if escapes and size:
        x[rng.integers(0, size, 3)] = np.inf, 1e-40, -np.nan
    return x


@lru_cache(maxsize=64)
def example(name: str, size: int, round_id: int = 0, escapes: bool = True):
    codec = CODECS[name]
    xs = [tensor(size, seed, escapes) for seed in range(min(3, codec.workers))]
    terms = reduce(or_, (codec.propose(x) for x in xs))
    return codec, terms, [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]


def same(item, other) -> bool:
    return all(mine.tobytes() == theirs.tobytes() for mine, theirs in zip(item.body(), other.body(), strict=True))


@given(name=names, size=sizes, round_id=rounds, escapes=st.booleans())
def test_everything_comes_back(name, size, round_id, escapes):
    codec, terms, payloads = example(name, size, round_id, escapes)
    raw = to_bytes(terms, round_id=round_id)
    frame = parse(raw)
    assert (frame.round_id, frame.size, frame.lo, frame.hi, frame.length) == (round_id, size, 0, 0, 16)
    back = frame.terms(codec, terms.shape)
    assert back == terms
    assert to_bytes(back, round_id=round_id) == raw
    read = []
    for item in payloads:
        raw = to_bytes(item)
        assert len(raw) == HEADER_SIZE + item.nbytes
        read.append(parse(raw).payload(codec, terms))
        assert (read[-1].rank, read[-1].round_id) == (item.rank, round_id)
        assert same(read[-1], item)
        assert to_bytes(read[-1]) == raw
    for total in (codec.add(read), codec.add(read[-1:])):
        raw = to_bytes(total)
        assert len(raw) == HEADER_SIZE + total.nbytes
        again = parse(raw).sum(codec, terms)
        assert (again.ranks, again.count, again.round_id) == (total.ranks, total.count, round_id)
        assert same(again, total)
        assert to_bytes(again) == raw
        assert codec.peel(again).at.tolist() == codec.peel(total).at.tolist()


def test_a_frame_may_lie_anywhere_in_memory_which_may_then_change():
    codec, terms, payloads = example("three", 2000)
    for shift in range(1, 8):
        buffer = bytearray(bytes(shift) + to_bytes(payloads[0]))
        back = parse(memoryview(buffer)[shift:]).payload(codec, terms)
        buffer[:] = bytes(len(buffer))
        assert back.cells.flags.aligned
        assert same(back, payloads[0])


def test_buffers_are_views():
    _, _, payloads = example("three", 2000)
    pieces = buffers(payloads[0])
    assert np.shares_memory(np.asarray(pieces[3]), payloads[0].cells)


# One test per way to be bad

CODEC, TERMS, PAYLOADS = example("three", 700, 3)
RAW = {"terms": to_bytes(TERMS, round_id=3), "payload": to_bytes(PAYLOADS[0]), "sum": to_bytes(CODEC.add(PAYLOADS))}
KINDS = ["terms", "payload", "sum"]


def read(raw, codec=CODEC, terms=TERMS):
    frame = parse(raw)
    if frame.kind is Kind.TERMS:
        return frame.terms(codec, terms.shape)
    return frame.payload(codec, terms) if frame.kind is Kind.PAYLOAD else frame.sum(codec, terms)


def refused(raw: bytes, message: str, error: type[Exception] = FrameError) -> None:
    with pytest.raises(error, match=message):
        read(raw)


@pytest.mark.parametrize("kind", KINDS)
def test_the_header(kind):
    raw = RAW[kind]
    read(raw)
    refused(forge(raw, bits=1), f"bits 1 is wrong in a {kind} frame: 0..0 in a payload")
    refused(forge(raw, hi=1), "part range ends at hi=1, the limit is 0: a sketch is never split")
    refused(forge(raw, lo=1), "part range 1..0 has lo > hi")
    refused(forge(raw, size=2**32), "size 4294967296 is not in 0..4294967295")
    refused(forge(raw, size=701), "size differs", MismatchError)
    refused(forge(raw, fingerprint=bytes(8)), "codec family differs", MismatchError)


def test_counts():
    refused(forge(RAW["sum"], flags=1), "announces counts in a sketch")
    refused(forge(RAW["payload"], flags=1), "announces counts in a payload frame")
    for count in (0, 2, 4):
        refused(forge(RAW["sum"], count=count), f"the sum names 3 ranks, its count is {count}")


def test_length_of_terms():
    for length in (0, 8, 24):
        refused(
            forge(RAW["terms"], body=bytes(length)), f"body length {length} of terms is not 16, that of sketch terms"
        )


@pytest.mark.parametrize(("numbers", "message"), [((255, 1), "exponent 255"), ((1, 701), "capacity 701")])
def test_terms_out_of_range(numbers, message):
    refused(forge(RAW["terms"], body=struct.pack("<QQ", *numbers)), message)


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_length(kind):
    raw = RAW[kind]
    for bad in (raw[HEADER_SIZE:-1], raw[HEADER_SIZE:] + b"\0", b""):
        refused(forge(raw, body=bad), "body length: ")
    refused(forge(raw, digest=1), "terms digest differs", MismatchError)


def test_rank_of_a_worker_that_is_not_there():
    refused(forge(RAW["payload"], rank=3), "rank 3 is not in 0..2")


@pytest.mark.parametrize("kind", KINDS)
def test_another_codec(kind):
    sparse = Sparse(3)
    theirs = sparse.propose(np.zeros(700, np.float32))
    with pytest.raises(MismatchError, match="codec family differs \\('sparse-.*' and 'sketch-.*'\\)"):
        read(RAW[kind], sparse, theirs)
    with pytest.raises(MismatchError, match="codec family differs \\('sketch-.*' and 'sparse-.*'\\)"):
        read(to_bytes(theirs))


def test_a_header_for_a_split_sketch_cannot_be_made():
    with pytest.raises(FrameError, match="never split"):
        Header(kind=Kind.SUM, family=CODEC.family, size=700, hi=1, length=64)


# Golden bytes

GOLDEN_CODEC = Sketch(workers=2, block=1, seed=7)
SIZE = 200

GOLDEN = {
    "terms": (
        "53554d570101030000000000000000003110470423e3b4ed0807060504030201c8000000000000000000000000000000"
        "0000000000000000100000000000000000000000b35ae03280000000000000000400000000000000"
    ),
    "payload": (
        "53554d570102030000000000010000003110470423e3b4ed0807060504030201c80000000000000083967b36560bfbb5"
        "00000000000000003801000000000000000000009fb6f45e00000000000000d800000000800000000200000000000000"
        "002000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000100000000000000000000000000000000000000000000000000000000000000000"
        "00000000000000d800000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000010000000000000000000000000000000000000000000000000000000000000000000000000000000d8"
        "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000000000000000000000000000000000001000000000000000d80000000000000000"
    ),
    "sum": (
        "53554d570103030000000000020000003110470423e3b4ed0807060504030201c80000000000000083967b36560bfbb5"
        "000000000000000054010000000000000000000026009e625ed1d366c0316c2e02000000800000000300000000000000"
        "020000000000000000200000000000000000000000000000000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000000000000000000010000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000dc0000000000000000000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000100000000000000000000000000000000000000000000000000000000000000000"
        "00000000000000dc00000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000001000000000000000dc"
        "000000000000000096000000c70000000000807feee36c0001000100"
    ),
}


def golden_items():
    xs = np.zeros((2, SIZE), np.float32)
    xs[0, [1, 77]] = 1, -2.5
    xs[1, [77, 150, 199]] = 0.25, np.inf, 1e-38
    terms = GOLDEN_CODEC.propose(xs[0])
    one, two = (GOLDEN_CODEC.encode(x, terms, rank=rank, round_id=ROUND) for rank, x in enumerate(xs))
    return {"terms": terms, "payload": one, "sum": one + two}


def written() -> dict[str, str]:
    return {name: to_bytes(item, round_id=ROUND).hex() for name, item in golden_items().items()}


def test_bytes_are_golden():
    assert written() == GOLDEN


def test_golden_bytes_are_read_and_obey_the_spec():
    raw = {name: bytes.fromhex(text) for name, text in GOLDEN.items()}
    terms = parse(raw["terms"]).terms(GOLDEN_CODEC, (SIZE,))
    digest = int.from_bytes(hashlib.blake2b(raw["terms"][72:], digest_size=8).digest(), "little")
    assert struct.unpack("<QQ", raw["terms"][72:]) == (128, 4)
    for name, kind in (("terms", 1), ("payload", 2), ("sum", 3)):
        head = spec_header(raw[name])
        assert (head["kind"], head["codec"]) == (kind, 3)
        assert not any(head[field] for field in ("bits", "flags", "lo", "hi"))
        assert head["digest"] == (digest if kind > 1 else 0)
        assert head["crc"] == spec_crc32c(raw[name][:68] + raw[name][72:])
        assert "sketch-" + head["fingerprint"].hex() == GOLDEN_CODEC.family
    assert same(parse(raw["payload"]).payload(GOLDEN_CODEC, terms), golden_items()["payload"])
    total = parse(raw["sum"]).sum(GOLDEN_CODEC, terms)
    assert GOLDEN_CODEC.sum_of(total)[[1, 77, 150, 199]].tolist() == [1, -2.25, np.inf, float(np.float32(1e-38))]
    body = raw["sum"][72:]
    escapes, exponent, ranks = struct.unpack_from("<IIQ", body, 8)
    assert (escapes, exponent, ranks) == (2, 128, 0b11)
    assert struct.unpack("<IIffHH", body[-20:]) == (150, 199, np.inf, float(np.float32(1e-38)), 1, 1)


if __name__ == "__main__":
    for name, text in written().items():
        print(f'    "{name}": (')
        for at in range(0, len(text), 96):
            print(f'        "{text[at : at + 96]}"')
        print("    ),")
