"""Adding the segments of a shard: the bits of the dense sum, whichever way it is made."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import FrameError, Sparse
from sumwire.codec.sparse import segment
from sumwire.kernels.arrays import Buffers

ODD = np.array(
    [0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFA12345, 0x7F7FFFFF],
    np.uint32,
).view(np.float32)
"""-0.0, denormals, Inf, NaNs with payloads, the largest float."""


@st.composite
def parts(draw: st.DrawFn) -> list[NDArray[Any]]:
    """One tensor per worker: large ones of few entries, small ones of many, of both in one sum."""
    size = draw(st.sampled_from([1, 63, 64, 1000, 20_000, 70_001, 300_000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    out = []
    crowd = rng.integers(0, size, 12)  # where many workers have something
    everywhere = rng.integers(0, size, 3)  # where all have the same odd number
    same = rng.choice(ODD, 3)
    dtype = draw(st.sampled_from([np.float32, np.float32, np.float16, ml_dtypes.bfloat16]))
    for _ in range(draw(st.integers(1, 6))):
        x = np.zeros(size, np.float32)
        count = draw(st.sampled_from([0, 1, 5, 200, size // 50, size]))
        at = np.concatenate([rng.integers(0, size, count), rng.choice(crowd, 6)])
        x[at] = np.where(rng.random(len(at)) < 0.2, rng.choice(ODD, len(at)), rng.standard_normal(len(at)))
        x[everywhere] = same
        with np.errstate(all="ignore"):
            out.append(x.astype(dtype))
    return out


def left_to_right(xs: list[NDArray[Any]]) -> NDArray[np.float32]:
    """The dense sum. Which of two NaNs survives, NumPy leaves to chance: here the earlier one does, quieted."""
    total = xs[0].astype(np.float32)
    for x in xs[1:]:
        term = x.astype(np.float32)
        with np.errstate(all="ignore"):
            bits = (total + term).view(np.uint32)
        bits[np.isnan(bits.view(np.float32))] = 0xFFC00000  # Inf - Inf
        for nan in (term, total):
            bits = np.where(np.isnan(nan), nan.view(np.uint32) | 1 << 22, bits)
        total = bits.astype(np.uint32).view(np.float32)
    return total


def segments(codec: Sparse, xs: list[NDArray[Any]]) -> list[tuple[int, NDArray[np.uint8]]]:
    payloads = [codec.encode(x, codec.propose(x), rank=rank) for rank, x in enumerate(xs)]
    return [(payload.kind, payload.segment(0)) for payload in payloads]


@given(xs=parts())
def test_both_ways_have_the_bytes_of_the_dense_sum(xs: list[NDArray[Any]]) -> None:
    codec, bits = Sparse(len(xs), shards=1), xs[0].size
    sent = segments(codec, xs)
    expected = left_to_right(xs)
    total = codec.add([codec.encode(x, codec.propose(x), rank=rank) for rank, x in enumerate(xs)])
    assert codec.sum_of(total).tobytes() == expected.tobytes()
    made = segment.add(sent, bits, Buffers()).tobytes()
    assert made == total.closed().data.tobytes()
    assert made == segment._in_buffer(sent, bits, Buffers()).tobytes()
    entries = sum(len(segment.read_places(data, kind, bits).at) for kind, data in sent)
    if 8 * entries < bits:  # else the sum of all coordinates may be shorter, which is not for this way
        places = [segment.read_places(data, kind, bits) for kind, data in sent]
        assert made == segment._at_places(places, bits).tobytes()


def test_the_union_keeps_entries_that_cancel() -> None:
    x = np.zeros(1 << 20, np.float32)
    x[[5, 1 << 19]] = 1, -2
    codec = Sparse(2, shards=1)
    made = segment.add(segments(codec, [x, 0 - x]), x.size, Buffers())
    assert segment.read_places(made, 0, x.size).at.tolist() == [5, 1 << 19]
    assert not segment.read_places(made, 0, x.size).values.any()


def test_a_shard_that_nobody_sent_is_empty_whatever_its_size() -> None:
    for bits in (0, 1, 64, 1 << 36):
        assert segment.add([], bits, Buffers()).tobytes() == bytes(4)


@pytest.mark.parametrize("bits", [100, 1 << 30])
def test_a_segment_of_another_tensor_is_refused(bits: int) -> None:
    whole = np.frombuffer(b"\0\0\0\0" + bytes(4), np.uint8)
    with pytest.raises(FrameError, match="8 bytes ends after 4"):
        segment.add([(0, whole)] * 2, bits, Buffers())
