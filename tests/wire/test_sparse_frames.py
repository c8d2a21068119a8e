"""Frames of the Sparse codec: whatever is written comes back."""

from __future__ import annotations

from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.codec.sparse.codec import Sparse
from sumwire.wire.frame import buffers, parse, to_bytes
from sumwire.wire.header import HEADER_SIZE
from sumwire.wire.limits import Kind

CODECS = {
    "one": Sparse(1),
    "three": Sparse(3, block=64, seed=5),
    "eight": Sparse(8, block=128),
    "many": Sparse(70),
    "one shard": Sparse(5, shards=1),
    "spare shards": Sparse(2, shards=9, block=64),
}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

names = st.sampled_from(sorted(CODECS))
dtypes = st.sampled_from(sorted(DTYPES))
sizes = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 128, 1024]), st.integers(0, 3000))
rounds = st.sampled_from([0, 7, 2**64 - 1])


def tensor(size: int, seed: int, dtype: str = "float32") -> np.ndarray:
    """Stretches that are empty, thin, dense and full, so that indexes are coded in every way."""
    rng = np.random.default_rng(seed)
    density = rng.choice([0, 0.01, 0.3, 1], size // 300 + 1).repeat(300)[:size]
    return (rng.standard_normal(size) * (rng.random(size) < density)).astype(DTYPES[dtype])


@lru_cache(maxsize=256)
def example(name: str, size: int, round_id: int = 0, dtype: str = "float32"):
    """A codec, terms, and payloads of at most 3 workers."""
    codec = CODECS[name]
    xs = [tensor(size, seed, dtype) for seed in range(min(3, codec.workers))]
    terms = codec.propose(xs[0])
    return codec, terms, [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]


def some_shards(data, codec: Sparse) -> tuple[int, int]:
    lo, hi = sorted(data.draw(st.tuples(*[st.integers(0, codec.shards)] * 2)))
    return lo, hi


@given(name=names, size=sizes, round_id=rounds)
def test_terms_are_empty_and_come_back(name, size, round_id):
    codec, terms, _ = example(name, size)
    raw = to_bytes(terms, round_id=round_id)
    assert len(raw) == HEADER_SIZE
    frame = parse(raw)
    assert (frame.kind, frame.round_id, frame.size, frame.lo, frame.hi) == (Kind.TERMS, round_id, size, 0, 0)
    back = frame.terms(codec, terms.shape)
    assert back == terms
    assert to_bytes(back, round_id=round_id) == raw


@given(name=names, size=sizes, dtype=dtypes, round_id=rounds, data=st.data())
def test_payload_and_its_parts_come_back(name, size, dtype, round_id, data):
    codec, terms, payloads = example(name, size, round_id, dtype)
    for item in (payloads[-1], payloads[-1].part(*some_shards(data, codec))):
        raw = to_bytes(item)
        back = parse(raw).payload(codec, terms)
        assert (back.rank, back.kind, back.lo, back.hi) == (item.rank, item.kind, item.lo, item.hi)
        assert (back.sizes, back.round_id, back.codec) == (item.sizes, round_id, codec)
        np.testing.assert_array_equal(back.data, item.data)
        assert to_bytes(back) == raw
        assert len(raw) == HEADER_SIZE + item.nbytes
    np.testing.assert_array_equal(
        codec.sum_of(parse(to_bytes(payloads[0])).payload(codec, terms)), tensor(size, 0, dtype).astype(np.float32)
    )


@given(name=names, size=sizes, dtype=dtypes, round_id=rounds, data=st.data())
def test_sum_and_its_parts_come_back(name, size, dtype, round_id, data):
    codec, terms, payloads = example(name, size, round_id, dtype)
    total = codec.add(payloads)
    for item in (total.closed(), total.part(*some_shards(data, codec))):
        raw = to_bytes(item)
        back = parse(raw).sum(codec, terms)
        assert (back.lo, back.hi, back.round_id, back.count) == (item.lo, item.hi, round_id, item.count)
        assert (back.sizes, back.counts, back.parts) == (item.sizes, item.counts, None)
        np.testing.assert_array_equal(back.data, item.data)
        assert to_bytes(back) == raw
        assert len(raw) == HEADER_SIZE + item.nbytes
    assert to_bytes(total) == to_bytes(total.closed())
    np.testing.assert_array_equal(codec.decode(parse(to_bytes(total)).sum(codec, terms)), codec.decode(total))


@given(name=names.filter(lambda name: name != "one"), size=sizes, data=st.data())
def test_counts_that_differ_between_shards_come_back(name, size, data):
    codec, terms, payloads = example(name, size)
    total = codec.add([payloads[0], *(payload.part(*some_shards(data, codec)) for payload in payloads[1:])]).closed()
    raw = to_bytes(total)
    back = parse(raw).sum(codec, terms)
    assert back.counts == total.counts
    assert back.count == max(total.counts)
    uniform = min(total.counts) == max(total.counts)
    assert len(raw) == HEADER_SIZE + total.nbytes + (0 if uniform else 4 * codec.shards)
    assert to_bytes(back) == raw
    np.testing.assert_array_equal(codec.decode(back), codec.decode(total))


def test_shards_that_nobody_sent_come_back():
    codec, terms, payloads = example("eight", 2000)
    total = (payloads[0].part(1, 3) + payloads[1].part(6, 7)).closed()
    assert total.counts == (1, 1, 0, 0, 0, 1)
    back = parse(to_bytes(total)).sum(codec, terms)
    assert (back.counts, back.lo, back.hi) == (total.counts, 1, 7)
    np.testing.assert_array_equal(codec.decode(back, missing="zero"), codec.decode(total, missing="zero"))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_frame_may_lie_anywhere_in_memory(dtype):
    codec, terms, payloads = example("three", 2000, 0, dtype)
    mean = codec.decode(codec.add(payloads))
    for shift in range(1, 8):
        frames = [memoryview(bytes(shift) + to_bytes(payload))[shift:] for payload in payloads]
        total = codec.add([parse(frame).payload(codec, terms) for frame in frames])
        np.testing.assert_array_equal(codec.decode(total), mean)
        back = parse(memoryview(bytes(shift) + to_bytes(total))[shift:]).sum(codec, terms)
        np.testing.assert_array_equal(codec.decode(back), mean)


def test_items_are_views():
    codec, terms, payloads = example("three", 2000)
    total = codec.add(payloads).closed()
    for item in (payloads[0], total):
        assert np.shares_memory(np.asarray(buffers(item)[-1]), item.data)
        buffer = bytearray(to_bytes(item))
        frame = parse(buffer)
        back = frame.payload(codec, terms) if item is payloads[0] else frame.sum(codec, terms)
        assert np.shares_memory(back.data, np.frombuffer(buffer, np.uint8))
        assert not back.data.flags.writeable
