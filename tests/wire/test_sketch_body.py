"""Bodies of Sketch: what is written is read back, and nothing else is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import SketchSum
from sumwire.errors import FrameError, RoundError
from sumwire.wire.sketch import read_payload, read_sum, read_terms
from tests.codec.sketch.samples import Workers, bits_of, payloads_of, same_bits, sparse, whole

Bytes = NDArray[np.uint8]

CODEC = Sketch(3, seed=9)


def example() -> tuple[Workers, SketchSum]:
    xs = [np.zeros(1501, np.float32) for _ in range(3)]
    for rank, x in enumerate(xs):
        x[40 * rank : 40 * rank + 60] = 1.5 + rank
        x[70] = 1e-30
        x[80 + rank] = np.nan
    return xs, whole(CODEC, xs, round_id=5)


def joined(parts: list[Bytes]) -> Bytes:
    return np.concatenate(parts)


@given(sparse(max_workers=3), st.integers(0, 2**64 - 1))
def test_bodies_come_back(xs: Workers, round_id: int) -> None:
    payloads = payloads_of(CODEC, xs, round_id)
    terms = payloads[0].sketch_terms
    assert read_terms(CODEC, terms.shape, joined(terms.body())) == terms
    again = [read_payload(CODEC, terms, round_id, p.rank, joined(p.body())) for p in payloads]
    total, other = CODEC.add(payloads), CODEC.add(again)
    assert isinstance(total, SketchSum)
    assert isinstance(other, SketchSum)
    assert bits_of(total) == bits_of(other)
    read = read_sum(CODEC, terms, round_id, total.count, joined(total.body()))
    assert bits_of(read) == bits_of(total)


def test_golden_bytes() -> None:
    """The format is what other releases read: it changes with the wire's version only."""
    codec = Sketch(2, seed=1)
    x = np.zeros(1000, np.float32)
    x[[3, 500]] = 1.5, np.inf
    payload = codec.encode(x, codec.propose(x), rank=1, round_id=2)
    assert joined(payload.terms.body()).tobytes().hex() == "7f000000000000000400000000000000"  # type: ignore[attr-defined]
    body = joined(payload.body()).tobytes()
    assert body[8:16].hex() == "010000007f000000"
    assert body[-8:].hex() == "f40100000000807f"
    assert len(body) == payload.nbytes == 304
    assert hashlib.blake2b(body, digest_size=8).hexdigest() == "25b3f4aff19ff263"


def cut(body: Bytes) -> Bytes:
    return body[:-1]


def longer(body: Bytes) -> Bytes:
    return np.append(body, np.uint8(0))


def nothing(body: Bytes) -> Bytes:
    return body[:0]


def put(offset: int, value: int, width: int = 1) -> Callable[[Bytes], Bytes]:
    """Overwrite little-endian bytes, counted from the end if the offset is negative."""

    def change(body: Bytes) -> Bytes:
        body = body.copy()
        at = offset % len(body)
        body[at : at + width] = np.frombuffer(value.to_bytes(width, "little"), np.uint8)
        return body

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (cut, "body length: 15"),
        (longer, "body length: 17"),
        (nothing, "body length: 0"),
        (put(0, 255), "exponent 255"),
        (put(7, 1), "exponent"),
        (put(8, 1502, 8), "capacity 1502 is more than the tensor's 1501"),
        (put(15, 255), "capacity"),
    ],
)
def test_bad_terms_are_named(change: Callable[[Bytes], Bytes], match: str) -> None:
    _, total = example()
    with pytest.raises(FrameError, match=match):
        read_terms(CODEC, total.shape, change(joined(total.sketch_terms.body())))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (cut, "body length"),
        (longer, "body length"),
        (nothing, "body length: 0 bytes of a sketch sum"),
        (put(8, 2**32 - 1, 4), r"body length: .* for its 4294967295 escapes"),
        (put(8, 0, 4), r"body length: .* for its 0 escapes"),
        (put(12, 255), "exponent 255"),
        (put(13, 1), "exponent"),
        (put(16, 3), "names 2 ranks, its count is 3"),
        (put(16, 0b1011), "rank 3 is not in 0..2"),
        (put(-2, 7, 2), "rank that is not in the sum"),
        (put(-60, 1501, 4), "coordinate 1501 is not in 0..1500"),
        (put(-60, 90, 4), "not in ascending order"),
        (put(-36, 1 << 31, 4), "value is zero"),
        (put(24 + 8 * 24 - 1, 128), "padding of the index"),
    ],
)
def test_bad_sums_are_named(change: Callable[[Bytes], Bytes], match: str) -> None:
    _, total = example()
    assert total.sketch_terms.bitmap
    assert not total.sketch_terms.direct
    assert len(total.escapes) == 6
    with pytest.raises(FrameError, match=match):
        read_sum(CODEC, total.sketch_terms, 5, 3, change(joined(total.body())))


@given(st.binary(max_size=200), st.integers(0, 3))
def test_noise_is_refused(noise: bytes, count: int) -> None:
    _, total = example()
    data = np.frombuffer(noise, np.uint8)
    with pytest.raises(FrameError):
        read_sum(CODEC, total.sketch_terms, 5, count, data)
    with pytest.raises(FrameError):
        read_payload(CODEC, total.sketch_terms, 5, 0, data)


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_refused_or_harmless(changes: list[tuple[int, int]]) -> None:
    xs, total = example()
    body = joined(total.body())
    good = CODEC.sum_of(total)
    for at, flip in changes:
        body[at % len(body)] ^= np.uint8(flip)
    try:
        read = read_sum(CODEC, total.sketch_terms, 5, 3, body)
        peeled = CODEC.peel(read)
        result = CODEC.complete(peeled, np.stack([CODEC.pick(x, peeled.leftovers) for x in xs]), divisor=1)
    except (FrameError, RoundError):
        return
    assert same_bits(result, good)


def test_limits_are_named() -> None:
    _, total = example()
    payload = CODEC.encode(example()[0][0], total.sketch_terms, rank=0)
    with pytest.raises(FrameError, match="rank 3 is not in 0..2"):
        read_payload(CODEC, total.sketch_terms, 0, 3, joined(payload.body()))
    with pytest.raises(FrameError, match="the limit is 4294967295"):
        read_terms(CODEC, (1 << 20, 1 << 20), joined(total.sketch_terms.body()))
