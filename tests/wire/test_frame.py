"""Whatever is written comes back: round trips over codecs, sizes, dtypes, parts and counts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import InputError, Lattice, MismatchError
from sumwire.wire import body as body_rules
from sumwire.wire.frame import Frame, buffers, parse, parse_header, to_bytes
from sumwire.wire.header import HEADER_SIZE
from sumwire.wire.limits import Kind

CODECS = {
    "energy": Lattice(2, 4, block=64, energy=1.0, widths="energy", seed=3),
    "feedback": Lattice(3, 2, block=64, energy=1.0, widths="energy", feedback=True),
    "fixed": Lattice(4, 3, block=128, widths="fixed"),
    "ladder": Lattice(4, 4, block=64, energy=1.0, widths=(0, 2, 4, 8)),
    "byte lanes": Lattice(4, 4, block=64, widths="fixed", granularity=30, lane_bits=8),
    "word lanes": Lattice(4, 4, block=64, widths="fixed", granularity=30, lane_bits=16),
    "double lanes": Lattice(4, 4, block=64, widths="fixed", granularity=30, lane_bits=32),
    "17 bit lanes": Lattice(300, 8, block=64, energy=1.0, widths="energy"),
    "no rotation": Lattice(2, 5, block=64, rotate=False),
    "one bit": Lattice(1, 1, block=256, widths="fixed"),
}
IN_MEMORY = ("byte lanes", "word lanes", "double lanes")

names = st.sampled_from(sorted(CODECS))
sizes = st.one_of(st.sampled_from([0, 1, 2, 3, 7, 8, 63, 64, 65, 71, 127, 255, 256, 512]), st.integers(0, 1500))
dtypes = st.sampled_from([np.float16, np.float32, np.float64])
rounds = st.sampled_from([0, 1, 7, 2**64 - 1])


def tensor(size: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    """Blocks of very different energy, some of none at all."""
    rng = np.random.default_rng(seed)
    loud = rng.choice([0, 1e-3, 1, 30], size // 50 + 1).repeat(50)[:size]
    return (rng.standard_normal(size) * loud).astype(dtype)


def edges(terms) -> list[int]:
    """Where a part may begin and end."""
    sizes = terms.sizes
    return [k for k in range(len(sizes) + 1) if not (0 < k < len(sizes) and sizes[k - 1] < 8)]


@lru_cache(maxsize=256)
def example(name: str, size: int, round_id: int = 0, dtype: type = np.float32):
    """A codec, terms, and the payloads of as many workers as it takes (at most 3)."""
    codec = CODECS[name]
    xs = [tensor(size, seed, dtype) for seed in range(min(3, codec.workers))]
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    return codec, terms, [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]


@given(name=names, size=sizes, dtype=dtypes, round_id=rounds)
def test_terms_come_back(name, size, dtype, round_id):
    codec, terms, _ = example(name, size, 0, dtype)
    data = to_bytes(terms, round_id=round_id)
    frame = parse(data)
    assert (frame.kind, frame.round_id, frame.size, frame.lo, frame.hi) == (
        Kind.TERMS,
        round_id,
        size,
        0,
        len(terms.sizes),
    )
    back = frame.terms(codec, terms.shape)
    assert back == terms
    assert not back.scales.flags.writeable
    assert to_bytes(back, round_id=round_id) == data
    assert len(data) == HEADER_SIZE + terms.nbytes


@given(name=names, size=sizes, dtype=dtypes, round_id=rounds, data=st.data())
def test_payload_and_its_parts_come_back(name, size, dtype, round_id, data):
    codec, terms, payloads = example(name, size, round_id, dtype)
    lo, hi = sorted(data.draw(st.tuples(st.sampled_from(edges(terms)), st.sampled_from(edges(terms)))))
    for item in (payloads[0], payloads[0].part(lo, hi)):
        raw = to_bytes(item)
        back = parse(raw).payload(codec, terms)
        assert (back.lo, back.hi, back.round_id, back.codec) == (item.lo, item.hi, round_id, codec)
        np.testing.assert_array_equal(back.data, item.data)
        np.testing.assert_array_equal(back.widths, item.widths)
        assert to_bytes(back) == raw
        assert len(raw) == HEADER_SIZE + item.nbytes


@given(name=names, size=sizes, round_id=rounds, data=st.data())
def test_sum_and_its_parts_come_back(name, size, round_id, data):
    codec, terms, payloads = example(name, size, round_id)
    total = codec.add(payloads)
    lo, hi = sorted(data.draw(st.tuples(st.sampled_from(edges(terms)), st.sampled_from(edges(terms)))))
    for item in (total, total.part(lo, hi)):
        raw = to_bytes(item)
        back = parse(raw).sum(codec, terms)
        assert (back.lo, back.hi, back.round_id, back.count) == (item.lo, item.hi, round_id, item.count)
        np.testing.assert_array_equal(back.lanes, item.lanes)
        np.testing.assert_array_equal(back.counts, item.counts)
        assert to_bytes(back) == raw
        assert len(raw) == HEADER_SIZE + item.nbytes
    np.testing.assert_array_equal(codec.decode(parse(to_bytes(total)).sum(codec, terms)), codec.decode(total))


@given(name=names.filter(lambda name: CODECS[name].workers > 1), size=st.integers(130, 1500), data=st.data())
def test_counts_that_differ_between_blocks_come_back(name, size, data):
    codec, terms, payloads = example(name, size)
    some = st.sampled_from(edges(terms))
    parts = [payload.part(*sorted(data.draw(st.tuples(some, some)))) for payload in payloads]
    total = codec.add(parts).whole()
    raw = to_bytes(total)
    back = parse(raw).sum(codec, terms)
    np.testing.assert_array_equal(back.counts, total.counts)
    np.testing.assert_array_equal(back.lanes, total.lanes)
    assert back.count == total.counts.max()
    assert back.counts.dtype == np.int32
    uniform = total.counts.min() == total.counts.max()
    assert len(raw) == HEADER_SIZE + total.nbytes + (0 if uniform else 4 * len(total.counts))
    assert to_bytes(back) == raw


def test_parsed_items_add_up_to_the_same_mean():
    codec, terms, payloads = example("energy", 1001)
    mean = codec.decode(codec.add(payloads))
    sent = [parse(to_bytes(payload)).payload(codec, terms) for payload in payloads]
    first = parse(to_bytes(codec.add(sent[:1]))).sum(codec, terms)
    np.testing.assert_array_equal(codec.decode(first + sent[1]), mean)


def test_a_worker_with_fewer_bits_comes_back_with_its_own_widths():
    codec, terms, payloads = example("energy", 1001)
    frugal = codec.with_bits(2)
    payload = frugal.encode(tensor(1001, 1), terms, rank=1)
    frame = parse(to_bytes(payload))
    for reader in (codec, frugal, codec.with_bits(1)):
        back = frame.payload(reader, terms)
        assert back.codec == frugal
        np.testing.assert_array_equal(back.widths, payload.widths)
    np.testing.assert_array_equal((back + payloads[0]).lanes, (payload + payloads[0]).lanes)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_bytes_like_buffer_is_parsed(kind):
    codec, terms, payloads = example("energy", 1001)
    assert parse(kind(to_bytes(payloads[0]))).payload(codec, terms).nbytes == payloads[0].nbytes


def test_a_frame_may_lie_anywhere_in_memory():
    codec, terms, payloads = example("word lanes", 1001)
    total = codec.add(payloads)
    for shift in range(1, 8):
        for item in (terms, payloads[0], total):
            frame = parse(memoryview(bytes(shift) + to_bytes(item))[shift:])
            if frame.kind is Kind.TERMS:
                assert frame.terms(codec, (1001,)).scales.flags.aligned
            elif frame.kind is Kind.PAYLOAD:
                np.testing.assert_array_equal(frame.payload(codec, terms).data, item.data)
            else:
                np.testing.assert_array_equal(codec.decode(frame.sum(codec, terms)), codec.decode(total))


def test_strided_or_foreign_buffers_are_refused():
    with pytest.raises(InputError, match="contiguous"):
        parse(memoryview(bytes(200))[::2])
    with pytest.raises(InputError, match="str"):
        parse("SUMW")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ndarray has no frame"):
        to_bytes(np.zeros(3))  # type: ignore[arg-type]


def test_a_parsed_payload_shares_the_buffer_and_is_read_only():
    codec, terms, payloads = example("energy", 1001)
    buffer = bytearray(to_bytes(payloads[0]))
    data = parse(buffer).payload(codec, terms).data
    assert np.shares_memory(data, np.frombuffer(buffer, np.uint8))
    assert not data.flags.writeable


def test_parsed_terms_do_not_share_the_buffer():
    codec, terms, _ = example("energy", 1001)
    buffer = bytearray(to_bytes(terms))
    back = parse(buffer).terms(codec, (1001,))
    buffer[:] = bytes(len(buffer))
    assert back == terms


@pytest.mark.parametrize("name", sorted(CODECS))
def test_parsed_lanes_are_shared_where_memory_and_wire_agree(name):
    codec, terms, payloads = example(name, 1001)
    buffer = bytearray(to_bytes(codec.add(payloads)))
    lanes = parse(buffer).sum(codec, terms).lanes
    assert np.shares_memory(lanes, np.frombuffer(buffer, np.uint8)) == (name in IN_MEMORY)
    assert not lanes.flags.writeable


def test_buffers_are_views_of_the_items_own_memory():
    codec, _, payloads = example("energy", 1001)
    exact = replace(codec, terms="exact").propose(tensor(1001))
    assert np.shares_memory(np.asarray(buffers(exact)[1]), exact.scales)
    assert np.shares_memory(np.asarray(buffers(payloads[0])[1]), payloads[0].data)
    for name in IN_MEMORY:
        codec, _, payloads = example(name, 1001)
        total = codec.add([payloads[0], payloads[1].part(0, 3)])
        header, counts, lanes = buffers(total)
        assert np.shares_memory(np.asarray(counts), total.counts)
        assert np.shares_memory(np.asarray(lanes), total.lanes)
        assert b"".join([header, counts, lanes]) == to_bytes(total)


def test_a_stream_reader_learns_the_length_from_the_header():
    _, _, payloads = example("energy", 1001)
    raw = to_bytes(payloads[0])
    header = parse_header(raw[:HEADER_SIZE])
    assert HEADER_SIZE + header.length == len(raw)
    assert not isinstance(header, Frame)


def test_terms_alone_take_a_round():
    _, terms, payloads = example("energy", 1001)
    assert parse(to_bytes(terms)).round_id == 0
    assert to_bytes(payloads[0], round_id=0) == to_bytes(payloads[0])
    with pytest.raises(MismatchError, match="round differs"):
        to_bytes(payloads[0], round_id=5)


def test_shape_is_the_receivers():
    codec = CODECS["energy"]
    raw = to_bytes(codec.propose(tensor(1000).reshape(10, 100)))
    assert parse(raw).terms(codec, (10, 100)).shape == (10, 100)
    assert parse(raw).terms(codec, (1000,)).shape == (1000,)


@given(blocks=st.lists(st.sampled_from([0, 1, 2, 4]), max_size=12), tail=st.integers(0, 63), seed=st.integers(0, 99))
def test_peaks_are_each_blocks_largest_lane(blocks, tail, seed):
    """Lanes of all widths, mixed: as a sum of many workers has them."""
    rng = np.random.default_rng(seed)
    small = [1 << k for k in reversed(range(6)) if tail >> k & 1]
    block_sizes = np.array([64] * len(blocks) + small, np.int64)
    per_lane = np.array([*blocks, *rng.choice([0, 1, 2, 4], len(small))], np.int64)
    runs = [
        rng.integers(0, 256**width, size).astype(f"<u{width}") if width else np.zeros(0, np.uint8)
        for size, width in zip(block_sizes.tolist(), per_lane.tolist(), strict=True)
    ]
    lanes = np.concatenate([np.zeros(0, np.uint8), *(run.view(np.uint8) for run in runs)])
    expected = [int(run.max(initial=0)) for run in runs]
    assert body_rules.peaks(lanes, block_sizes, per_lane * block_sizes).tolist() == expected
