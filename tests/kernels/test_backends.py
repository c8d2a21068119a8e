"""Every compiled instruction set returns the reference's bytes, whatever hypothesis picks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import Lattice
from sumwire.kernels.hashing import crc32c
from sumwire.kernels.lattice import reference
from sumwire.kernels.lattice.blocks import block_sizes, payload_bytes
from sumwire.kernels.lattice.lanes import lane_bits, lane_bytes
from sumwire.kernels.lattice.lanes import words as lane_words
from sumwire.kernels.lattice.scheme import Keys
from tests.strategies import BLOCKS, codecs, tensors

library = pytest.importorskip("sumwire.kernels.native", exc_type=OSError, reason="built without a compiler")
native = pytest.importorskip("sumwire.kernels.lattice.native")

pytestmark = pytest.mark.usefixtures("level")

KEYS = st.builds(Keys, *[st.integers(0, 2**32 - 1)] * 3, st.integers(0, 65535))


def bits_of(x: NDArray[Any]) -> bytes:
    return x.tobytes()


def cast(x: NDArray[np.float32], kind: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        if kind == "bfloat16":
            return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return np.clip(x, -6e4, 6e4).astype(kind) if kind == "float16" else x.astype(kind)


class Case:
    """One tensor under one scheme, with widths and classes drawn at random."""

    def __init__(self, codec: Lattice, x: NDArray[np.float32], kind: str, seed: int) -> None:
        self.scheme = codec._family.scheme_for_all
        self.x = cast(x, kind)
        self.sizes = block_sizes(x.size, self.scheme.log_block)
        self.blocks = len(self.sizes)
        self.scales = np.empty(self.blocks, np.float32)
        reference.measure(self.x, self.scheme, self.scales, 0, self.blocks)
        rng = np.random.default_rng(seed)
        # Joined scales are those of the largest worker: this one may have much less.
        self.scales *= rng.choice(np.array([1, 1, 1.01, 1.5, 3, 30], np.float32), self.blocks)
        known = np.array([w for w, s in enumerate(self.scheme.lattices) if s], dtype=np.uint8)
        self.classes = np.where(self.scales > 0, rng.choice(known, self.blocks), np.uint8(0)).astype(np.uint8)
        narrower = {int(c): [w for cls, w in self.scheme.tables if cls == c] for c in known}
        self.widths = np.array([rng.choice(narrower[int(c)]) if c else 0 for c in self.classes], dtype=np.uint8)


CASES = st.builds(
    Case,
    codecs(),
    tensors(),
    st.sampled_from(["float32", "float32", "float16", "bfloat16", "float64"]),
    st.integers(0, 2**32 - 1),
)


@given(CASES)
def test_measure(case: Case) -> None:
    out = np.full(case.blocks, np.nan, np.float32)
    native.measure(case.x, case.scheme, out, 0, case.blocks)
    expected = np.empty_like(out)
    reference.measure(case.x, case.scheme, expected, 0, case.blocks)
    assert bits_of(out) == bits_of(expected)


@given(CASES, KEYS, st.booleans())
def test_encode(case: Case, keys: Keys, with_residual: bool) -> None:
    check_encode(case, keys, with_residual)


@given(st.integers(0, 2**32 - 1), KEYS, st.booleans())
def test_encode_where_positions_have_a_bit_less_than_tables(seed: int, keys: Keys, with_residual: bool) -> None:
    codec, random = Lattice(2, 4), np.random.default_rng(seed)
    assert codec.nominal_lattice.fraction_bits == 7
    check_encode(Case(codec, random.standard_normal(1500, np.float32), "float32", seed), keys, with_residual)


def check_encode(case: Case, keys: Keys, with_residual: bool) -> None:
    results = []
    for backend in (reference, native):
        out = np.full(payload_bytes(case.sizes, case.widths), 255, np.uint8)
        rest = np.full(case.x.size, np.nan, np.float32) if with_residual else None
        args = (case.scheme, case.x, case.scales, case.classes, case.widths, keys)
        bad = backend.encode(*args, out, rest, 0, case.blocks)
        results.append((bad, bits_of(out), None if rest is None else bits_of(rest)))
    assert results[0][0] == -1
    assert results[0] == results[1]


@given(CASES, KEYS, st.integers(1, 3), st.booleans())
def test_add_pack_unpack_decode(case: Case, keys: Keys, payloads: int, fresh: bool) -> None:
    data = np.empty(payload_bytes(case.sizes, case.widths), np.uint8)
    reference.encode(case.scheme, case.x, case.scales, case.classes, case.widths, keys, data, None, 0, case.blocks)
    size, blocks = case.x.size, case.blocks
    memory = int(lane_bytes(case.scheme, case.sizes, case.classes).sum())
    packed = payload_bytes(case.sizes, lane_bits(case.scheme, case.classes))
    counts = np.where(np.arange(blocks) % 5 == 4, 0, payloads).astype(np.int32)
    results = []
    for backend in (reference, native):
        lanes, wire = np.full(memory, 7 if fresh else 0, np.uint8), np.full(packed, 255, np.uint8)
        backend.add(case.scheme, size, case.classes, lanes, [(data, case.widths)] * payloads, fresh, 0, blocks)
        backend.pack_lanes(case.scheme, size, case.classes, lanes, wire, 0, blocks)
        again = np.zeros(memory, np.uint8)
        backend.unpack_lanes(case.scheme, size, case.classes, wire, again, 0, blocks)
        words = np.full(int(lane_words(case.scheme, case.sizes, case.classes).sum()), 7, np.int32)
        backend.pack_words(case.scheme, size, case.classes, lanes, words, 0, blocks)
        back = np.zeros(memory, np.uint8)
        backend.unpack_words(case.scheme, size, case.classes, words, 1, back, 0, blocks)
        twice = lanes.copy()
        backend.add_lanes(case.scheme, size, case.classes, twice, lanes, 0, blocks)
        out = np.full(size, np.nan, np.float32)
        backend.decode(case.scheme, lanes, counts, case.scales, case.classes, keys.sign, out, 0, blocks)
        straight, around = np.full((2, size), np.nan, np.float32)
        backend.decode_packed(case.scheme, wire, counts, case.scales, case.classes, keys.sign, straight, 0, blocks)
        backend.decode(case.scheme, again, counts, case.scales, case.classes, keys.sign, around, 0, blocks)
        assert bits_of(straight) == bits_of(around)
        results.append([bits_of(a) for a in (lanes, wire, again, words, back, twice, out)])
    for mine, theirs in zip(*results, strict=True):
        assert mine == theirs


@pytest.mark.parametrize("workers", [500, 540])
@pytest.mark.parametrize("block", [256, 512, 1024, 4096])
def test_the_largest_lanes_of_15_and_16_bits_decode(workers: int, block: int) -> None:
    """Vector code adds words of 15 bits in 16: where all lanes, or every other one, are at an end of their range."""
    codec = Lattice(workers, 4, block=block, widths="fixed", down_bits="exact")
    lattice = codec.scheme.lattices[4]
    assert lattice is not None
    assert lattice.lane_bits == (15 if workers == 500 else 16)
    top, at = workers * lattice.granularity, np.arange(block)
    lanes = np.concatenate([0 * at, 0 * at + top, at % 2 * top, at // 16 % 2 * top, at * top // block])
    blocks = len(lanes) // block
    results = []
    for backend in (reference, native):
        out = np.full(len(lanes), np.nan, np.float32)
        backend.decode(
            codec.scheme,
            lanes.astype(np.uint16).view(np.uint8),
            np.full(blocks, workers, np.int32),
            np.ones(blocks, np.float32),
            np.full(blocks, 4, np.uint8),
            7,
            out,
            0,
            blocks,
        )
        results.append(bits_of(out))
    assert results[0] == results[1]


def test_a_block_beyond_its_terms_is_found_by_all() -> None:
    codec = Lattice(4, 4, block=256)
    x = np.ones(2000, np.float32)
    scheme = codec.scheme
    sizes = block_sizes(x.size, scheme.log_block)
    scales = np.ones(len(sizes), np.float32)
    widths = np.full(len(sizes), 4, np.uint8)
    for factor, expected in ((1.0, -1), (1.001, -1), (1.1, 3), (1e30, 3), (np.nan, 3), (np.inf, 3)):
        x[768:1024] = factor
        for backend in (reference, native):
            out = np.empty(payload_bytes(sizes, widths), np.uint8)
            found = backend.encode(scheme, x, scales, widths, widths, Keys(1, 2, 3, 4), out, None, 0, len(sizes))
            assert found == expected, (backend.__name__, factor)


@given(
    tensors(), BLOCKS, st.integers(0, 8), st.sampled_from([0, 1, 77, 128, 256, 512]),
    st.sampled_from([(0, 1, 2, 3, 4, 5, 6, 7, 8), (0, 2, 4, 8), (0, 5)]), st.booleans(),
)  # fmt: skip
def test_allocate(
    x: NDArray[np.float32], block: int, bits: int, energy: int, ladder: tuple[int, ...], floor: bool
) -> None:
    log_block = block.bit_length() - 1
    sizes = block_sizes(x.size, log_block)
    scales = np.array([np.abs(part).max() for part in np.split(x, np.cumsum(sizes)[:-1])] if len(sizes) else [], "f4")
    least = min(w for w in ladder if w) if floor else 0
    results = []
    for backend in (reference, native):
        out = np.zeros(len(sizes), np.uint8)
        backend.allocate(scales, x.size, log_block, max(bits, least) * x.size, energy, ladder, least, out)
        results.append(out)
    assert (results[0] == results[1]).all()
    assert int((results[0] * sizes).sum()) <= max(bits, least) * x.size
    assert (results[0][scales == 0] == 0).all()
    assert (results[0][scales > 0] >= least).all()
    assert set(results[0].tolist()) <= {0, *ladder}


@given(tensors(), st.sampled_from([1, 2, 8, 64, 1024, 8192]), st.integers(0, 2**32 - 1), st.booleans())
def test_rotate(x: NDArray[np.float32], block: int, key: int, inverse: bool) -> None:
    results = []
    for backend in (reference, native):
        out = np.empty_like(x)
        with np.errstate(over="ignore", invalid="ignore"):
            backend.rotate(x, block.bit_length() - 1, key, inverse, out)
        results.append(bits_of(out))
    assert results[0] == results[1]


@pytest.mark.parametrize("size", [255, 256, 511, 512, 513, 767, 768, 769, 1023, 1024, 1025, 3071, 3072, 3073, 6145])
@pytest.mark.parametrize("start", [0, 1, 0xFFFFFFFF])
def test_crc32c_where_its_algorithm_changes(size: int, start: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 1, dtype=np.uint8)
    for array in (data[:-1], data[1:]):
        assert library.crc32c(array, start) == crc32c.__wrapped__(array, start)


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1))
def test_crc32c(data: bytes, start: int) -> None:
    array = np.frombuffer(data, np.uint8)
    assert library.crc32c(array, start) == crc32c.__wrapped__(array, start)
    long = np.resize(np.append(array, np.uint8(7)), 3 * 1024 * 2 + len(array))  # runs side by side, and a rest
    assert library.crc32c(long, start) == crc32c.__wrapped__(long, start)


@pytest.mark.parametrize("block", [1 << 13, 1 << 16, 1 << 20])
def test_blocks_beyond_the_caches(block: int) -> None:
    codec = Lattice.thc(2, block=block)
    x = np.random.default_rng(5).standard_normal(block + block // 2 + 3).astype(np.float32)
    case = Case(codec, x, "float32", 0)
    results = []
    for backend in (reference, native):
        out = np.zeros(payload_bytes(case.sizes, case.widths), np.uint8)
        rest = np.zeros(x.size, np.float32)
        args = (case.scheme, x, case.scales, case.classes, case.widths, Keys(1, 2, 3, 4))
        assert backend.encode(*args, out, rest, 0, case.blocks) == -1
        results.append(bits_of(out) + bits_of(rest))
    assert results[0] == results[1]


@pytest.mark.parametrize("workers", [4, 40])
@pytest.mark.parametrize("block", [256, 512, 4096])
def test_decode_writes_wherever_the_memory_begins(workers: int, block: int) -> None:
    """Whole cache lines go past the caches; what lies before and behind them does not, and nothing else is written."""
    codec = Lattice(workers, 4, block=block, down_bits="exact")
    x = np.random.default_rng(block).standard_normal(3 * block + 5).astype(np.float32)
    terms = codec.propose(x)
    total = codec.add([codec.encode(x, terms, rank=rank) for rank in range(3)])
    where = codec.scheme, total.lanes, total.counts, terms.scales, terms.layout(codec).classes, 7
    expected = np.empty(x.size, np.float32)
    reference.decode(*where, expected, 0, len(terms.sizes))
    for offset in [*range(0, 72, 4), 1, 2, 3, 63]:
        memory = np.full(expected.nbytes + 256, 77, np.uint8)
        begin = (offset - memory.ctypes.data) % 64 + 64
        end = begin + expected.nbytes
        native.decode(*where, np.ndarray(x.size, np.float32, memory, begin), 0, len(terms.sizes))
        assert memory[begin:end].tobytes() == expected.tobytes()
        assert (memory[:begin] == 77).all()
        assert (memory[end:] == 77).all()
