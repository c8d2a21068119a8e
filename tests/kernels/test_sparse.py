"""Sparse kernels: every instruction set gives the reference's bits, and a bad index is never believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import sumwire
from sumwire.errors import FrameError, MismatchError
from sumwire.kernels import backend as chosen
from sumwire.kernels import sparse
from sumwire.kernels.sparse import reference as sparse_reference
from tests.kernels.backends import LEVELS, backend_at

ODD = np.array(
    [0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFA12345, 0x7F7FFFFF],
    np.uint32,
)
"""-0.0, denormals, Inf, NaNs with payloads, the largest float."""
ODD16 = np.array([0x8000, 1, 0x83FF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0x7F80, 0xFF81, 0x7FC5], np.uint16)


@pytest.fixture(scope="module", params=LEVELS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    with backend_at(request.param, "sparse") as module:
        yield module


@dataclass
class Case:
    """A shard of a tensor whose non-zeros lie at random, or in rows, among every odd number there is."""

    size: int
    block: int
    density: float
    row: int
    kind: str
    shards: int
    shard: int
    seed: int

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.x = self.draw(self.size, self.kind)
        alive = np.repeat(self.rng.random(-(-self.size // self.row)) < self.density, self.row)[: self.size]
        self.x.view(f"u{self.x.itemsize}")[~alive] = 0
        starts = np.arange(0, self.size, self.block, dtype=np.int64)
        self.starts = np.ascontiguousarray(starts[self.shard % self.shards :: self.shards])
        self.bits = sparse.bits(self.starts, self.block, self.size)
        self.words = np.empty(-(-self.bits // 64), np.uint64)
        sparse_reference.scan(self.x, self.starts, self.block, self.words)
        self.count = sparse_reference.count(self.words)

    def draw(self, n: int, kind: str) -> NDArray[Any]:
        x = self.rng.standard_normal(n).astype(np.float32)
        if kind == "float32":
            return np.where(self.rng.random(n) < 0.1, self.rng.choice(ODD, n), x.view(np.uint32)).view(np.float32)
        halves = x.astype(np.float16).view(np.uint16) if kind == "float16" else (x.view(np.uint32) >> 16)
        odd = np.where(self.rng.random(n) < 0.1, self.rng.choice(ODD16, n), halves.astype(np.uint16))
        return odd.astype(np.uint16).view(np.float16 if kind == "float16" else np.uint16)


KINDS = st.sampled_from(["float32", "float16", "bfloat16"])
CASES = st.builds(
    Case,
    st.one_of(st.integers(0, 300), st.integers(0, 20_000), st.sampled_from([1, 64, 128, 4096, 8192])),
    st.sampled_from([64, 128, 1024, 4096]),
    st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.3, 0.9, 0.99, 1.0]),
    st.sampled_from([1, 1, 7, 64, 200]),
    KINDS,
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
EMPTY = Case(0, 64, 0.0, 1, "float32", 1, 0, 0)
FULL = Case(6000, 1024, 1.0, 1, "float32", 2, 1, 0)


def guarded(n: int, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """An array, and the same with bytes around it that nobody may write to."""
    whole = np.full((n + 32) * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype)
    return whole[16 : 16 + n], whole


def untouched(whole: NDArray[Any], n: int) -> bool:
    raw = whole.view(np.uint8)
    edge = 16 * whole.itemsize
    return bool((raw[:edge] == 0xA5).all() and (raw[edge + n * whole.itemsize :] == 0xA5).all())


@given(case=CASES, spare=st.integers(0, 100))
@example(case=EMPTY, spare=0)
@example(case=FULL, spare=0)
def test_scan_compact_gather(backend: Any, case: Case, spare: int) -> None:
    dense = np.concatenate([case.x[a : a + case.block] for a in case.starts] or [case.x[:0]])
    raw = dense.view(f"u{dense.itemsize}")
    words, whole = guarded(len(case.words), np.uint64)
    backend.scan(case.x, case.starts, case.block, words)
    assert untouched(whole, len(words))
    assert words.tobytes() == case.words.tobytes()
    for kernel in (backend.compact, backend.gather):
        values, around = guarded(case.count + spare, case.x.dtype)
        assert kernel(case.x, case.starts, case.block, words, values) == case.count
        assert values[: case.count].tobytes() == raw[raw != 0].tobytes()
        assert words.tobytes() == case.words.tobytes()
        assert untouched(around, len(values))


@given(case=CASES)
def test_values_that_do_not_fit_are_counted_but_not_written(backend: Any, case: Case) -> None:
    room = case.count // 2
    for kernel in (backend.compact, backend.gather):
        values, around = guarded(room, case.x.dtype)
        assert kernel(case.x, case.starts, case.block, case.words.copy(), values) == case.count
        assert untouched(around, room)


@given(case=CASES, divisor=st.sampled_from([1.0, 2.0, 3.0, 7.0, 1e-3]))
@example(case=EMPTY, divisor=1.0)
@example(case=FULL, divisor=3.0)
def test_expand(backend: Any, case: Case, divisor: float) -> None:
    values = case.draw(case.count, "float32")
    results = []
    for which in (sparse_reference, backend):
        out, around = guarded(case.size, np.float32)
        which.expand(case.words, values, case.starts, case.block, out, divisor)
        assert untouched(around, case.size)
        results.append(out.tobytes())
        which.expand(case.words, np.full_like(values, 5), case.starts, case.block, out, divisor)
        which.expand(case.words, values, case.starts, case.block, out, divisor, clean=True)
        assert out.tobytes() == results[-1]
    assert results[0] == results[1]
    if divisor == 1 and case.kind == "float32" and case.shards == 1:
        kept = case.x.view(np.uint32)
        sparse_reference.expand(case.words, case.x[kept != 0], case.starts, case.block, out)
        assert out.tobytes() == case.x.tobytes()


def test_a_large_expand_streams_around_the_caches(backend: Any) -> None:
    case = Case(300_001, 4096, 0.05, 1, "float32", 1, 0, 5)
    values = case.x[case.x.view(np.uint32) != 0]
    for offset in range(0, 17, 3):
        out = np.full(case.size + 32, 7, np.float32)
        backend.expand(case.words, values, case.starts, case.block, out[offset : offset + case.size])
        assert out[offset : offset + case.size].tobytes() == case.x.tobytes()
        assert (out[:offset] == 7).all()
        assert (out[offset + case.size :] == 7).all()


@given(case=CASES, kind=KINDS)
@example(case=EMPTY, kind="float32")
@example(case=FULL, kind="float16")
def test_accumulate(backend: Any, case: Case, kind: str) -> None:
    values = case.draw(case.count, kind)
    start = case.draw(case.bits, "float32")
    results = []
    for which in (sparse_reference, backend):
        acc, around = guarded(case.bits, np.float32)
        acc[:] = start
        which.accumulate(acc, case.words, values)
        assert untouched(around, case.bits)
        results.append(acc.tobytes())
    assert results[0] == results[1]


@given(case=CASES, workers=st.integers(1, 4))
def test_accumulate_is_the_sum_from_left_to_right(backend: Any, case: Case, workers: int) -> None:
    finite = np.where(case.rng.random((workers, case.bits)) < case.density, 1, 0) * case.rng.standard_normal(
        (workers, case.bits)
    )
    terms = (finite * 10.0 ** case.rng.integers(-44, 38, (workers, case.bits))).astype(np.float32)
    expected, acc = np.zeros(case.bits, np.float32), np.zeros(case.bits, np.float32)
    starts = np.arange(0, case.bits, 64, dtype=np.int64)
    with np.errstate(all="ignore"):
        for term in terms:
            expected += term
            words, values = np.empty(-(-case.bits // 64), np.uint64), np.empty(case.bits, np.float32)
            count = backend.gather(term, starts, 64, words, values)
            backend.accumulate(acc, words, values[:count])
    # -0.0 + 0.0 is 0.0 in both; a NaN (Inf - Inf) is the same NaN.
    assert acc.tobytes() == expected.tobytes()


def bitmap(flags: NDArray[Any]) -> NDArray[np.uint64]:
    whole = np.zeros(-(-len(flags) // 64) * 64, np.uint8)
    whole[: len(flags)] = flags
    return np.packbits(whole, bitorder="little").view("<u8")


def positions(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def round_trip(backend: Any, words: NDArray[np.uint64], bits: int) -> int:
    code = backend.encode_index(words, bits)
    assert code.tobytes() == sparse_reference.encode_index(words, bits).tobytes()
    assert backend.index_bytes(words, bits) == len(code)
    assert backend.count(words) == sparse_reference.count(words)
    back, around = guarded(len(words), np.uint64)
    data = np.concatenate([code, np.full(3, 0xFF, np.uint8)])
    assert backend.decode_index(data, bits, back) == (sparse_reference.count(words), len(code))
    assert back.tobytes() == words.tobytes()
    assert untouched(around, len(words))
    at = positions(words)
    assert backend.encode_positions(at, bits).tobytes() == code.tobytes()
    assert backend.measure_index(data, bits) == (len(at), len(code))
    found, used = backend.decode_positions(data, bits, len(at))
    assert (found.tobytes(), used) == (at.tobytes(), len(code))
    if len(at):
        with pytest.raises(FrameError, match="more bits are set than values follow"):
            backend.decode_positions(data, bits, len(at) - 1)
    return int(code[0])


@given(case=CASES)
@example(case=EMPTY)
@example(case=FULL)
def test_index_round_trip(backend: Any, case: Case) -> None:
    round_trip(backend, case.words, case.bits)


def some_bitmaps() -> dict[str, NDArray[Any]]:
    """One bitmap or more for each mode, by the mode's number and a name."""
    rng = np.random.default_rng(1)
    words = np.zeros((400, 64), np.uint8)
    words[rng.permutation(400)[:40]] = rng.random((40, 64)) < 0.5
    far = np.zeros(70_000, np.uint8)
    far[[0, 35_000, 69_999]] = 1
    return {
        "0 empty": np.zeros(1000, np.uint8),
        "0 of nothing": np.zeros(0, np.uint8),
        "1 scattered": (rng.random(20_000) < 0.03).astype(np.uint8),
        "1 far apart": far,
        "1 only the last": np.eye(1, 4096, 4095, dtype=np.uint8)[0],
        "2 rows": np.repeat(rng.random(300) < 0.1, 70).astype(np.uint8),
        "2 rows that end with the last word": np.repeat([0, 1, 0, 1], 320).astype(np.uint8),
        "2 nearly all": (rng.random(5000) < 0.97).astype(np.uint8),
        "3 coins": (rng.random(3001) < 0.5).astype(np.uint8),
        "4 words": words.reshape(-1)[:-5],
        "5 full": np.ones(777, np.uint8),
        "5 one": np.ones(1, np.uint8),
    }


@pytest.mark.parametrize("name", some_bitmaps())
def test_each_mode_is_chosen_and_comes_back(backend: Any, name: str) -> None:
    flags = some_bitmaps()[name]
    assert round_trip(backend, bitmap(flags), len(flags)) == int(name[0])


@pytest.mark.parametrize("name", some_bitmaps())
def test_a_truncated_index_is_refused(backend: Any, name: str) -> None:
    flags = some_bitmaps()[name]
    code = sparse_reference.encode_index(bitmap(flags), len(flags))
    words = np.empty(-(-len(flags) // 64), np.uint64)
    for length in {*range(min(12, len(code))), len(code) // 2, len(code) - 1}:
        with pytest.raises(FrameError, match=r"truncated|never ends"):
            backend.decode_index(code[:length].copy(), len(flags), words)


BAD = {
    "mode": ([6, 0], "mode is unknown"),
    "k of gaps": ([1, 32, 1, 0, 0, 0, 0], "k is out of range"),
    "k1 of runs": ([2, 0, 1, 0, 0, 0, 32, 0], "k is out of range"),
    "k of empty": ([0, 1], "k is out of range"),
    "no count": ([1, 0, 0, 0, 0, 0, 0], "count"),
    "count beyond bits": ([1, 0, 101, 0, 0, 0, *[0] * 99], "count"),
    "runs beyond the count": ([2, 0, 2, 0, 0, 0, 0, 0b01110], "count"),
    "gap beyond": ([1, 7, 1, 0, 0, 0, 0b1, 0], "beyond"),
    "second gap beyond": ([1, 6, 2, 0, 0, 0, 0b10111111, 0b10111110 & 0xFF, 0xFF, 0], "beyond"),
    "run beyond": ([2, 6, 70, 0, 0, 0, 6, 0b01111110, 0b10111111, 0], "beyond"),
    "padding of gaps": ([1, 0, 1, 0, 0, 0, 0b10], "fill up"),
    "padding of the bitmap": ([3, 0, *[0] * 12, 0xF0], "fill up"),
    "padding of the map of words": ([4, 0, 4], "fill up"),
    "unary": ([1, 0, 1, 0, 0, 0, *[255] * 90], "never ends"),
    "empty word": ([4, 0, 1, *[0] * 8], "marked as non-empty"),
    "word beyond": ([4, 0, 2, *[255] * 8], "beyond"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_index_is_refused(backend: Any, name: str) -> None:
    data, why = BAD[name]
    words, around = guarded(2, np.uint64)
    with pytest.raises(FrameError, match=why):
        backend.decode_index(np.array(data, np.uint8), 100, words)
    assert untouched(around, 2)


def verdict(backend: Any, data: NDArray[np.uint8], bits: int) -> tuple[Any, bytes]:
    words, around = guarded(-(-bits // 64), np.uint64)
    try:
        result: Any = backend.decode_index(data, bits, words)
    except FrameError as error:
        result = str(error)
    assert untouched(around, len(words))
    assert outcome(backend.measure_index, data, bits) == result
    found = outcome(backend.decode_positions, data, bits, bits)
    if isinstance(result, str):
        assert found == result
        return result, b""
    assert (found[0].tobytes(), found[1]) == (positions(words).tobytes(), result[1])
    return result, words.tobytes()


def outcome(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except FrameError as error:
        return str(error)


@st.composite
def hostile(draw: st.DrawFn) -> tuple[NDArray[np.uint8], int]:
    bits = draw(st.one_of(st.integers(0, 200), st.integers(0, 5000)))
    k = st.one_of(st.integers(0, 8), st.integers(0, 34))
    count = draw(st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1)))
    head = [draw(st.integers(0, 6)), draw(k), *count.to_bytes(4, "little"), draw(k)]
    data = bytes(head[: draw(st.integers(0, 7))]) + draw(st.binary(max_size=80))
    return np.frombuffer(data, np.uint8).copy(), bits


@given(given_case=hostile())
def test_hostile_bytes_are_refused_or_mean_a_set(backend: Any, given_case: tuple[NDArray[np.uint8], int]) -> None:
    data, bits = given_case
    result, words = verdict(backend, data, bits)
    assert (result, words) == verdict(sparse_reference, data, bits)
    if not isinstance(result, str):
        found = np.frombuffer(words, np.uint64).copy()
        assert sparse_reference.count(found) == result[0]
        round_trip(backend, found, bits)


@given(case=CASES, flips=st.lists(st.integers(0, 10**6), min_size=1, max_size=3))
def test_flipped_bits_are_refused_or_mean_a_set(backend: Any, case: Case, flips: list[int]) -> None:
    code = sparse_reference.encode_index(case.words, case.bits)
    for flip in flips:
        code[flip // 8 % len(code)] ^= 1 << flip % 8
    assert verdict(backend, code, case.bits) == verdict(sparse_reference, code, case.bits)


@given(given_case=hostile(), bits=st.integers(1 << 20, 1 << 36), room=st.integers(0, 40))
def test_a_claimed_size_is_no_reason_to_expand_anything(
    backend: Any, given_case: tuple[NDArray[np.uint8], int], bits: int, room: int
) -> None:
    data, _ = given_case
    assert outcome(backend.measure_index, data, bits) == outcome(sparse_reference.measure_index, data, bits)
    mine, theirs = (outcome(which.decode_positions, data, bits, room) for which in (backend, sparse_reference))
    if isinstance(theirs, str):
        assert mine == theirs
    else:
        assert (mine[0].tolist(), mine[1]) == (theirs[0].tolist(), theirs[1])
        assert len(mine[0]) <= room


@given(
    size=st.integers(1, 300),
    kind=KINDS,
    at=st.lists(st.integers(0, 10**6), max_size=200),
    seed=st.integers(0, 2**32 - 1),
)
def test_accumulate_at_adds_one_after_the_other(backend: Any, size: int, kind: str, at: list[int], seed: int) -> None:
    case = Case(size, 64, 1.0, 1, kind, 1, 0, seed)
    where = np.array(at, np.int64) % size
    values, start = case.draw(len(where), kind), case.draw(size, "float32")
    acc, around = guarded(size, np.float32)
    acc[:] = start
    backend.accumulate_at(acc, where, values)
    assert untouched(around, size)
    expected = start.copy()
    for i, place in enumerate(where):  # by the kernel that is the judge of a single sum
        one = np.zeros(len(case.words), np.uint64)
        sparse_reference.set_bits(one, where[i : i + 1])
        assert positions(one).tolist() == [place]
        sparse_reference.accumulate(expected, one, values[i : i + 1])
    assert acc.tobytes() == expected.tobytes()


@given(case=CASES)
def test_set_bits(backend: Any, case: Case) -> None:
    words, around = guarded(len(case.words), np.uint64)
    words[:] = 0
    for _ in range(2):  # those that are set stay set
        backend.set_bits(words, positions(case.words))
        assert words.tobytes() == case.words.tobytes()
    assert untouched(around, len(words))


def test_positions_beyond_32_bits() -> None:
    native = pytest.importorskip("sumwire.kernels.sparse.native", exc_type=OSError, reason="built without a compiler")
    # A bitmap of 2**36 bits is too large for a test, but not its code.
    gap = np.array([1, 31, 1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F, 0, 0, 0, 0], np.uint8)
    with pytest.raises(FrameError, match="beyond"):
        native.decode_index(gap, 64, np.empty(1, np.uint64))
    for which in (native, sparse_reference):
        far = np.array([5, 2**35, 2**35 + 1, 2**36 - 1])
        code = which.encode_positions(far, 2**36)
        assert code.tobytes() == sparse_reference.encode_positions(far, 2**36).tobytes()
        assert which.decode_positions(code, 2**36, 4)[0].tolist() == far.tolist()


@pytest.mark.parametrize("count", [1, 3])
def test_threads_change_nothing(count: int) -> None:
    if chosen.name() == "reference":
        pytest.skip("the reference is too slow for tensors that are worth a thread")
    case = Case((1 << 20) + 77, 1024, 0.04, 1, "float32", 1, 0, 3)
    before = sumwire.set_num_threads(count)
    try:
        words, values = np.empty_like(case.words), np.empty(case.bits, np.float32)
        sparse.scan(case.x, case.starts, case.block, words)
        assert words.tobytes() == case.words.tobytes()
        words[:] = 0
        assert sparse.gather(case.x, case.starts, case.block, words, values) == case.count
        assert words.tobytes() == case.words.tobytes()
        exact = np.empty(case.count, np.float32)
        assert sparse.compact(case.x, case.starts, case.block, words, exact) == case.count
        assert exact.tobytes() == values[: case.count].tobytes()
        out = np.empty_like(case.x)
        sparse.expand(words, exact, case.starts, case.block, out)
        assert out.tobytes() == case.x.tobytes()
        mine, theirs = np.ones(case.bits, np.float32), np.ones(case.bits, np.float32)
        sparse.accumulate(mine, words, exact)
        sparse_reference.accumulate(theirs, words, exact)
        assert mine.tobytes() == theirs.tobytes()
    finally:
        sumwire.set_num_threads(before)


def test_starts_may_have_strides() -> None:
    x = np.arange(1024, dtype=np.float32)
    starts = np.arange(0, 1024, 64)[1::4]
    words, values, out = np.empty(4, np.uint64), np.empty(256, np.float32), np.zeros(1024, np.float32)
    sparse.scan(x, starts, 64, words)
    assert sparse.compact(x, starts, 64, words, values) == 256
    assert sparse.gather(x, starts, 64, words, values) == 256
    sparse.expand(words, values, starts, 64, out)
    assert np.array_equal(out, np.where(np.arange(1024) // 64 % 4 == 1, x, np.float32(0)))


def test_too_few_values_are_refused() -> None:
    x, starts = np.ones(100, np.float32), np.zeros(1, np.int64)
    words, few = np.empty(2, np.uint64), np.empty(99, np.float32)
    with pytest.raises(MismatchError, match="room for only 99"):
        sparse.gather(x, starts, 128, words, few)
    with pytest.raises(MismatchError, match="only 99 values"):
        sparse.compact(x, starts, 128, words, few)
    with pytest.raises(MismatchError, match="only 99 values"):
        sparse.expand(words, few, starts, 128, x)
    with pytest.raises(MismatchError, match="only 99 values"):
        sparse.accumulate(x, words, few)


def test_golden_bytes() -> None:
    flags = np.zeros(40, np.uint8)
    flags[[2, 9, 10, 30]] = 1
    assert sparse.encode_index(bitmap(flags), 40).tobytes() == bytes([3, 0, 4, 6, 0, 0x40, 0])
    wide = np.zeros(400, np.uint8)
    wide[[2, 9, 10, 30]] = 1
    # Gaps 2, 6, 0, 19 with k = 2, lowest bit first: 0 01, 10 01, 0 00, 11110 11.
    assert sparse.encode_index(bitmap(wide), 400).tobytes() == bytes([1, 2, 4, 0, 0, 0, 0x4C, 0xBC, 0x01])
    rows = np.repeat([0, 1, 0, 1, 0], 100).astype(np.uint8)
    # Runs 100, 100, 100, 100 with k = 6: 10 001001 for a zero run, 10 110001 for the 99 of a run of ones.
    assert sparse.encode_index(bitmap(rows), 500).tobytes() == bytes([2, 6, 200, 0, 0, 0, 6, *[0x91, 0x8D] * 2])
