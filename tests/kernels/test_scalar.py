"""Kernels of mean estimation: every instruction set gives the reference's bits, and tiles cover the vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import sumwire
from sumwire.dme import Eden, MeanScheme, Rotated, StochasticLevels
from sumwire.dme.eden import lloyd_max
from sumwire.kernels import backend, scalar, threads
from sumwire.kernels.lattice import reference
from sumwire.kernels.lattice.blocks import block_sizes
from sumwire.kernels.scalar import reference as scalar_reference
from tests.strategies import tensors

library = pytest.importorskip("sumwire.kernels.native", exc_type=OSError, reason="built without a compiler")
native = pytest.importorskip("sumwire.kernels.lattice.native")
scalar_native = pytest.importorskip("sumwire.kernels.scalar.native")

LOG_BLOCKS = st.sampled_from([0, 1, 3, 6, 8, 10, 13])
SIZES = (1, 2, 7, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000)
KEYS = st.integers(0, 2**32 - 1)
SEEDS = st.integers(0, 2**32 - 1)


def instruction_sets() -> Iterator[str]:
    """Sets each that this CPU has, then the best again."""
    best = library.level()
    try:
        for name in library.LEVELS:
            if library.set_level(name) == name:
                yield name
    finally:
        library.set_level(best)


def same_bits(shapes: dict[str, tuple[int, Any]], call: Callable[..., None]) -> dict[str, NDArray[Any]]:
    """call(module, rotate, **outputs) fills the outputs; all backends fill them alike, and write nothing beside."""
    expected = {name: np.zeros(n, dtype) for name, (n, dtype) in shapes.items()}
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        call(scalar_reference, reference.rotate, **expected)
    for level in instruction_sets():
        around = {
            name: np.full((n + 32) * np.dtype(kind).itemsize, 0xA5, np.uint8) for name, (n, kind) in shapes.items()
        }
        outputs = {name: around[name].view(kind)[16 : 16 + n] for name, (n, kind) in shapes.items()}
        call(scalar_native, native.rotate, **outputs)
        for name, out in outputs.items():
            assert out.tobytes() == expected[name].tobytes(), (level, name)
            edge = 16 * out.itemsize
            beside = np.concatenate([around[name][:edge], around[name][edge + out.nbytes :]])
            assert (beside == 0xA5).all(), (level, name)
    return expected


def blocks_of(x: NDArray[Any], log_block: int) -> int:
    return len(block_sizes(len(x), log_block))


def awkward(n: int, seed: int = 0) -> NDArray[np.float32]:
    """Noise with denormals and zeros among it."""
    rng = np.random.default_rng([n, seed])
    odd = np.array([1, 0x807FFFFF, 0x00400000, 0x80000001, 0], np.uint32).view(np.float32)
    return np.where(rng.random(n) < 0.2, rng.choice(odd, n), rng.standard_normal(n)).astype(np.float32)


def with_sizes(test: Any) -> Any:
    """The awkward sizes, whatever hypothesis picks besides."""
    for n in SIZES:
        test = example(x=awkward(n), log_block=n % 7, seed=n)(test)
    return example(x=awkward(9000), log_block=13, seed=9)(test)


@with_sizes
@given(x=tensors(), log_block=LOG_BLOCKS, seed=SEEDS)
def test_summarize(x: NDArray[np.float32], log_block: int, seed: int) -> None:
    x = x + np.float32(0)  # -0.0 and 0.0 are equal, and which of them is the smallest has a test of its own
    blocks = blocks_of(x, log_block)
    shapes = {"low": (blocks, np.float32), "high": (blocks, np.float32), "squares": (blocks, np.float64)}
    out = same_bits(shapes, lambda module, _, **to: module.summarize(x, log_block, **to))
    if len(x):
        assert out["low"].min() == x.min()
        assert out["high"].max() == x.max()
        assert out["squares"].sum() == pytest.approx(np.square(x.astype(np.float64)).sum())


@pytest.mark.parametrize("n", [2, 3, 16, 17, 40, 100])
def test_summarize_agrees_on_the_sign_of_zero(n: int) -> None:
    blocks = len(block_sizes(n, 7))
    shapes = {"low": (blocks, np.float32), "high": (blocks, np.float32), "squares": (blocks, np.float64)}
    for at in range(n):
        for x in (np.zeros(n, np.float32), -np.zeros(n, np.float32)):
            x[at] = -x[at]
            same_bits(shapes, lambda module, _, x=x, **to: module.summarize(x, 7, **to))


@with_sizes
@given(x=tensors(), log_block=LOG_BLOCKS, seed=SEEDS)
def test_quantize_and_dequantize(x: NDArray[np.float32], log_block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.choice([2, 3, 4, 5, 16, 200, 256, 257, 1000, 65535, 65536]))
    key, first = (int(word) for word in rng.integers(0, 2**32, 2))
    if rng.random() < 0.3:
        first = 2**32 - len(x) // 2  # counters wrap
    noise = rng.integers(0, 2**32, len(x), dtype=np.uint32) if rng.random() < 0.5 else None
    if noise is not None and len(x):
        noise[rng.integers(0, len(x), 5)] = rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1], 5)
    starts = np.concatenate([[0], np.cumsum(block_sizes(len(x), log_block))]).astype(int)[:-1]
    low = np.minimum.reduceat(x, starts).astype(np.float64) if len(x) else np.empty(0)
    high = np.maximum.reduceat(x, starts).astype(np.float64) if len(x) else np.empty(0)
    span = np.where(high > low, high - low, 1.0)
    gain = np.where(high > low, (k - 1) / span, 0.0)
    index = same_bits(
        {"out": (len(x), np.uint16)},
        lambda module, _, out: module.quantize(x, log_block, low, gain, k, key, first, noise, out),
    )["out"]
    assert not len(x) or int(index.max()) < k
    step = (high - low) / (k - 1)
    back = same_bits(
        {"out": (len(x), np.float32)}, lambda module, _, out: module.dequantize(index, log_block, low, step, out)
    )["out"]
    sizes = block_sizes(len(x), log_block)
    distance = np.abs(back.astype(np.float64) - x.astype(np.float64))
    assert (distance <= np.repeat(step * (1 + 1e-9) + 2.0**-23 * np.maximum(abs(low), abs(high)), sizes) + 2e-45).all()


def with_bits(test: Any) -> Any:
    for bits in range(1, 9):
        test = example(bits=bits, x=awkward(65), log_block=5, seed=bits)(test)
    return example(bits=4, x=awkward(9000), log_block=13, seed=0)(test)


@with_bits
@given(bits=st.integers(1, 8), x=tensors(), log_block=LOG_BLOCKS, seed=SEEDS)
def test_nearest_and_look_up(bits: int, x: NDArray[np.float32], log_block: int, seed: int) -> None:
    centers, edges = lloyd_max(bits)
    rng = np.random.default_rng(seed)
    sizes = block_sizes(len(x), log_block)
    gain = (10.0 ** rng.uniform(-3, 3, len(sizes))).astype(np.float32)
    gain[rng.random(len(sizes)) < 0.1] = 0
    if len(x) and rng.random() < 0.5:  # exactly on edges, and one step beside them
        gain[:] = 1
        on = rng.choice(edges, len(x))
        x = np.where(rng.random(len(x)) < 0.5, on, np.nextafter(on, rng.choice([-9, 9], len(x)), dtype=np.float32))
    found = same_bits(
        {"out": (len(x), np.uint16), "dots": (len(sizes), np.float64)},
        lambda module, _, out, dots: module.nearest(x, log_block, gain, edges, centers, out, dots),
    )
    scale = rng.standard_normal(len(sizes)).astype(np.float32)
    same_bits(
        {"out": (len(x), np.float32)},
        lambda module, _, out: module.look_up(found["out"], log_block, scale, centers, out),
    )


def with_widths(test: Any) -> Any:
    for width in range(1, 17):
        for n in (1, 7, 8, 63, 64, 65):
            test = example(width=width, n=n, seed=n)(test)
    return test


@with_widths
@given(width=st.integers(1, 16), n=st.integers(0, 3000), seed=SEEDS)
def test_pack_and_unpack(width: int, n: int, seed: int) -> None:
    index = np.random.default_rng(seed).integers(0, 1 << width, n, dtype=np.uint16)
    size = -(-n * width // 8)
    data = same_bits({"out": (size, np.uint8)}, lambda module, _, out: module.pack(index, width, out))["out"]
    number = sum(int(value) << i * width for i, value in enumerate(index[:200].tolist()))
    head = min(n, 200) * width // 8
    assert data[:head].tobytes() == (number & (1 << 8 * head) - 1).to_bytes(head, "little")
    back = same_bits({"out": (n, np.uint16)}, lambda module, _, out: module.unpack(data, width, out))["out"]
    assert back.tobytes() == index.tobytes()


@with_sizes
@given(x=tensors(), log_block=LOG_BLOCKS, seed=SEEDS)
def test_rotate(x: NDArray[np.float32], log_block: int, seed: int) -> None:
    """There, back, and back in place."""
    shapes = {"there": (len(x), np.float32), "back": (len(x), np.float32), "same": (len(x), np.float32)}

    def call(_: Any, rotate: Any, there: Any, back: Any, same: Any) -> None:
        rotate(x, log_block, seed, False, there)
        rotate(there, log_block, seed, True, back)
        same[:] = there
        rotate(same, log_block, seed, True, same)

    out = same_bits(shapes, call)
    assert out["back"].tobytes() == out["same"].tobytes()


@pytest.mark.parametrize("log_block", [14, 16, 20])
def test_rotate_beyond_the_caches(log_block: int) -> None:
    x = awkward((1 << log_block) + 100)
    same_bits({"out": (len(x), np.float32)}, lambda _, rotate, out: rotate(x, log_block, 5, False, out))


# Tiles


@given(size=st.one_of(st.integers(0, 3000), st.integers(0, 5 << 20)), log_block=st.integers(0, 20))
@example(size=1 << 16, log_block=12)
@example(size=(1 << 16) + 1, log_block=6)
@example(size=3 << 20, log_block=20)
def test_tiles_cover_everything_once(size: int, log_block: int) -> None:
    sizes = block_sizes(size, log_block)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    at = block = 0
    ends = dict.fromkeys(range(1, 17), 0)
    for tile in scalar.tiles(size, log_block):
        assert (tile.first, tile.blocks.start) == (at, block)
        at, block = tile.coordinates.stop, tile.blocks.stop
        assert tile.size == at - tile.first > 0
        assert edges[block] == at
        for width, end in ends.items():
            assert tile.packed(width).start == end
            ends[width] = tile.packed(width).stop
    assert (at, block) == (size, len(sizes))
    assert ends == {width: -(-size * width // 8) for width in ends}


@pytest.mark.parametrize("scheme", [StochasticLevels(3), Rotated(16), Eden(2)], ids=repr)
def test_any_number_of_threads_gives_the_same_bytes(scheme: MeanScheme, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((1 << 19) + 12_345).astype(np.float32)
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1 << 16)
    before = sumwire.set_num_threads(1)
    try:
        message = scheme.encode(x, rank=1, round_id=2)
        y = scheme.decode(message)
        # One of them is enough where NumPy takes a second.
        for count in (3,) if backend.name() == "reference" else (2, 3, 4, 16):
            sumwire.set_num_threads(count)
            assert threads.pieces(x.size) > 1
            assert scheme.encode(x, rank=1, round_id=2) == message
            assert scheme.decode(message).tobytes() == y.tobytes()
    finally:
        sumwire.set_num_threads(before)
