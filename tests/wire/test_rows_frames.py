"""Frames of the Rows codec: whatever is written comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import RoundError
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import RowSlices
from sumwire.wire.frame import build, describe, parse, to_bytes
from sumwire.wire.header import HEADER_SIZE
from sumwire.wire.limits import Kind
from tests.wire.rows_samples import DTYPES, bits_of, dense, table

CODECS = {
    "one": Rows(1),
    "three": Rows(3),
    "many": Rows(70),
    "one shard": Rows(5, shards=1),
    "spare shards": Rows(2, shards=9),
}

names = st.sampled_from(sorted(CODECS))
dtypes = st.sampled_from(sorted(DTYPES))
shapes = st.tuples(st.integers(1, 200), st.integers(0, 5))
rounds = st.sampled_from([0, 7, 2**64 - 1])


def example(name: str, shape: tuple[int, int], round_id: int = 0, dtype: str = "float32"):
    """A codec, terms, and payloads of at most 3 workers."""
    codec = CODECS[name]
    xs = [table(*shape, seed, dtype) for seed in range(min(3, codec.workers))]
    terms = codec.propose(xs[0])
    return codec, terms, [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]


def some_shards(data, codec: Rows) -> tuple[int, int]:
    lo, hi = sorted(data.draw(st.tuples(*[st.integers(0, codec.shards)] * 2)))
    return lo, hi


@given(name=names, shape=shapes, round_id=rounds)
def test_terms_come_back(name, shape, round_id):
    codec, terms, _ = example(name, shape)
    raw = to_bytes(terms, round_id=round_id)
    assert len(raw) == HEADER_SIZE + 16
    frame = parse(raw)
    assert (frame.kind, frame.round_id, frame.size, frame.lo, frame.hi) == (Kind.TERMS, round_id, terms.size, 0, 0)
    back = frame.terms(codec, shape)
    assert back == terms
    assert (back.table, back.width) == shape
    assert to_bytes(back, round_id=round_id) == raw


@given(name=names, shape=shapes, dtype=dtypes, round_id=rounds, data=st.data())
def test_payload_and_its_parts_come_back(name, shape, dtype, round_id, data):
    codec, terms, payloads = example(name, shape, round_id, dtype)
    for item in (payloads[-1], payloads[-1].part(*some_shards(data, codec))):
        raw = to_bytes(item)
        back = parse(raw).payload(codec, terms)
        assert (back.rank, back.kind, back.lo, back.hi) == (item.rank, item.kind, item.lo, item.hi)
        assert (back.round_id, back.codec) == (round_id, codec)
        assert to_bytes(back) == raw
        assert len(raw) == HEADER_SIZE + item.nbytes
    mean = codec.decode(parse(to_bytes(payloads[0])).payload(codec, terms))
    np.testing.assert_array_equal(dense(mean), dense(table(*shape, 0, dtype)))


@given(name=names, shape=shapes, dtype=dtypes, round_id=rounds, data=st.data())
def test_sum_and_its_parts_come_back(name, shape, dtype, round_id, data):
    codec, terms, payloads = example(name, shape, round_id, dtype)
    total = codec.add(payloads)
    for item in (total, total.part(*some_shards(data, codec))):
        raw = to_bytes(item)
        back = parse(raw).sum(codec, terms)
        assert (back.lo, back.hi, back.round_id, back.count) == (item.lo, item.hi, round_id, item.count)
        assert to_bytes(back) == raw
        assert len(raw) == HEADER_SIZE + item.nbytes
    assert bits_of(codec.decode(parse(to_bytes(total)).sum(codec, terms))) == bits_of(codec.decode(total))


@given(name=names.filter(lambda name: name != "one"), shape=shapes, data=st.data())
def test_counts_that_differ_between_shards_come_back(name, shape, data):
    codec, terms, payloads = example(name, shape)
    total = codec.add([payloads[0], *(payload.part(*some_shards(data, codec)) for payload in payloads[1:])])
    counts = [count for _, count in total.sums.values()]
    raw = to_bytes(total)
    back = parse(raw).sum(codec, terms)
    assert [count for _, count in back.sums.values()] == counts
    assert back.count == max(counts)
    uniform = min(counts) == max(counts)
    assert len(raw) == HEADER_SIZE + total.nbytes + (0 if uniform else 4 * codec.shards)
    assert to_bytes(back) == raw
    assert bits_of(codec.decode(back)) == bits_of(codec.decode(total))


def test_shards_that_nobody_sent_come_back():
    codec, terms, payloads = example("spare shards", (100, 2))
    total = payloads[0].part(1, 3) + payloads[1].part(6, 7)
    back = parse(to_bytes(total)).sum(codec, terms)
    assert (back.lo, back.hi, [count for _, count in back.sums.values()]) == (1, 7, [1, 1, 0, 0, 0, 1])
    assert bits_of(codec.decode(back, missing="zero")) == bits_of(codec.decode(total, missing="zero"))
    with pytest.raises(RoundError, match="nothing arrived of 6 of 9 shards"):
        codec.decode(back)


@pytest.mark.parametrize("lo", [0, 2, 3])
def test_a_range_of_no_shards_keeps_its_place(lo):
    codec, terms, payloads = example("three", (20, 2))
    for item in (payloads[0].part(lo, lo), codec.add(payloads).part(lo, lo)):
        frame = parse(to_bytes(item))
        assert (frame.lo, frame.hi, frame.length) == (lo, lo, 0)
        back = frame.payload(codec, terms) if item.count == 1 else frame.sum(codec, terms)
        assert (back.lo, back.hi) == (lo, lo)


def test_numbers_of_large_tables_have_8_bytes():
    codec, values = Rows(1), np.ones((2, 1), np.float32)
    for rows, numbers in ((2**32 - 1, [5, 2**32 - 2]), (2**32, [5, 2**32 - 1]), (2**36, [2**35, 2**36 - 1])):
        x = RowSlices((rows, 1), np.array(numbers), values)
        terms = codec.propose(x)
        raw = to_bytes(codec.encode(x, terms, rank=0))
        width = 4 if rows < 2**32 else 8
        assert len(raw) == HEADER_SIZE + 8 + 2 * (width + 4)
        assert codec.decode(parse(raw).payload(codec, terms)).numbers.tolist() == numbers


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_frame_may_lie_anywhere_in_memory(dtype):
    codec, terms, payloads = example("three", (90, 3), 0, dtype)
    mean = bits_of(codec.decode(codec.add(payloads)))
    for shift in range(1, 8):
        frames = [memoryview(bytes(shift) + to_bytes(payload))[shift:] for payload in payloads]
        total = codec.add([parse(frame).payload(codec, terms) for frame in frames])
        assert bits_of(codec.decode(total)) == mean
        back = parse(memoryview(bytes(shift) + to_bytes(total))[shift:]).sum(codec, terms)
        assert bits_of(codec.decode(back)) == mean


@given(name=names)
def test_a_server_can_build_the_codec(name):
    assert build(describe(CODECS[name])) == CODECS[name]
