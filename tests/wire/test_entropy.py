"""Variable-length coding: symbols come back, bits are few, and damage is never more than a FrameError."""

from __future__ import annotations

import math
import random
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import ConfigError, FrameError
from sumwire.dme import StochasticLevels, VariableLength
from sumwire.wire import entropy

pytest.importorskip("constriction")

Symbols = NDArray[np.uint16]


def draw(alphabet: int, size: int, shape: str, seed: int) -> Symbols:
    """Symbols of one of SHAPES."""
    rng = np.random.default_rng(seed)
    if shape == "constant":
        values = np.full(size, rng.integers(alphabet))
    elif shape == "edges":
        values = rng.choice([0, alphabet - 1], size, p=[0.99, 0.01])
    elif shape == "skewed":
        values = np.minimum(rng.geometric(0.4, size) - 1, alphabet - 1)
    elif shape == "bell":
        values = np.clip(np.rint(alphabet / 2 + rng.standard_normal(size) * alphabet / 8), 0, alphabet - 1)
    else:
        values = rng.integers(0, alphabet, size)
    return values.astype(np.uint16)


SHAPES = st.sampled_from(["constant", "edges", "skewed", "bell", "even"])
ALPHABETS = st.one_of(
    st.integers(2, 40), st.integers(2, 65536), st.sampled_from([2, 3, 4, 255, 256, 257, 65535, 65536])
)
SYMBOLS = st.tuples(ALPHABETS, st.integers(0, 2000), SHAPES, st.integers(0, 2**32 - 1))


@given(SYMBOLS)
@example((2, 1, "even", 0))
@example((2, 0, "even", 0))
@example((65536, 1, "even", 1))
@example((65536, 20_000, "even", 1))
def test_symbols_come_back(case: tuple[int, int, str, int]) -> None:
    alphabet, size, _, _ = case
    symbols = draw(*case)
    data = entropy.encode(symbols, alphabet)
    assert len(data) % 4 == 0
    back = entropy.decode(data, size, alphabet)
    assert back.dtype == np.uint16
    assert np.array_equal(back, symbols)


@given(symbols=st.lists(st.integers(0, 6), max_size=40), piece=st.integers(1, 12))
def test_in_several_pieces(symbols: list[int], piece: int) -> None:
    """Pieces have histograms of their own: constant ones, and a last one that is short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropy, "PIECE", piece)
        array = np.array(symbols, np.int32)
        back = entropy.decode(entropy.encode(array, 7), len(array), 7)
        assert back.tolist() == symbols


def test_a_piece_is_small_enough_for_the_coder() -> None:
    """One piece and a bit, by its true length."""
    symbols = draw(16, entropy.PIECE + 10, "skewed", 0)
    assert np.array_equal(entropy.decode(entropy.encode(symbols, 16), len(symbols), 16), symbols)


def test_symbols_need_not_be_contiguous_or_of_one_dtype() -> None:
    symbols = np.arange(100) % 7
    data = entropy.encode(symbols, 7)
    for dtype in (np.uint8, np.uint16, np.int32, np.int64):
        assert entropy.encode(symbols.astype(dtype), 7) == data
    assert entropy.encode(np.repeat(symbols, 2)[::2], 7) == data


# Bits


def histogram_bits(counts: list[int]) -> float:
    """By halves: each lower half's count is one of total + 1."""
    total = sum(counts)
    if total == 0 or len(counts) == 1:
        return 0.0
    half = 1 << (len(counts) - 1).bit_length() - 1
    return math.log2(total + 1) + histogram_bits(counts[:half]) + histogram_bits(counts[half:])


def ideal_bits(symbols: Symbols, alphabet: int) -> float:
    counts = np.bincount(symbols, minlength=alphabet)
    chances = counts[counts > 0] / max(1, len(symbols))
    padded = [*counts.tolist(), *[0] * ((1 << (alphabet - 1).bit_length()) - alphabet)]
    return float(-len(symbols) * (chances * np.log2(chances)).sum()) + histogram_bits(padded)


@given(SYMBOLS)
@example((256, 20_000, "bell", 0))
@example((65536, 5000, "even", 0))
def test_size_is_the_entropy_and_the_histogram(case: tuple[int, int, str, int]) -> None:
    symbols = draw(*case)
    bits = 8 * len(entropy.encode(symbols, case[0]))
    assert bits <= 1.02 * ideal_bits(symbols, case[0]) + 200


@given(alphabet=ALPHABETS, size=st.integers(1, 100_000))
def test_a_constant_takes_hardly_any_bits(alphabet: int, size: int) -> None:
    assert len(entropy.encode(draw(alphabet, size, "constant", size), alphabet)) <= 4 * (2 + 17 * 17 // 32)


# Damage


def mutations(data: bytes, rng: random.Random) -> bytes:
    raw = bytearray(data)
    kind = rng.randrange(6)
    if kind == 0 and raw:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        for _ in range(rng.randrange(1, 9)):
            if raw:
                raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif kind == 2:
        del raw[4 * rng.randrange(1 + len(raw) // 4) :]
    elif kind == 3:
        raw += rng.randbytes(4 * rng.randrange(1, 5))
    elif kind == 4:
        raw = bytearray(rng.randbytes(4 * rng.randrange(30)))
    else:
        raw = bytearray(rng.choice([b"\0", b"\xff"]) * 4 * rng.randrange(30))
    return bytes(raw)


def read(data: bytes, size: int, alphabet: int) -> Symbols | None:
    """The symbols, which must be in the alphabet, or None for damage."""
    try:
        symbols = entropy.decode(data, size, alphabet)
    except FrameError:
        return None
    assert len(symbols) == size
    assert not size or int(symbols.max()) < alphabet
    return symbols


def test_damage_is_a_frame_error_or_other_symbols() -> None:
    rng = random.Random(7)
    refused = 0
    for _ in range(500):
        alphabet, size = rng.choice([2, 3, 9, 33, 200, 65536]), rng.choice([0, 1, 5, 64, 300])
        shape = rng.choice(["constant", "edges", "skewed", "bell", "even"])
        data = entropy.encode(draw(alphabet, size, shape, rng.randrange(100)), alphabet)
        refused += read(mutations(data, rng), size, alphabet) is None
    assert 50 < refused < 500


@given(data=st.binary(max_size=80), size=st.integers(0, 300), alphabet=ALPHABETS)
def test_any_bytes(data: bytes, size: int, alphabet: int) -> None:
    read(data, size, alphabet)


@given(wrong=st.integers(0, 100), alphabet=st.integers(2, 65536))
def test_another_size_or_alphabet_than_was_sent(wrong: int, alphabet: int) -> None:
    read(entropy.encode(draw(16, 60, "even", 3), 16), wrong, alphabet)


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_parts_of_words(length: int) -> None:
    with pytest.raises(FrameError, match=f"whole words, not {length} bytes"):
        entropy.decode(b"\1" * length, 10, 4)


def test_words_behind_the_last_symbol() -> None:
    """Two of them: a single one may pass, as the coder cannot tell it from its own last word."""
    for size in (20, 100):
        data = entropy.encode(draw(16, size, "even", 0), 16)
        with pytest.raises(FrameError, match="bytes behind the last coded symbol"):
            entropy.decode(data + b"\1\2\3\4\5\6\7\10", size, 16)


def test_a_histogram_beyond_the_alphabet() -> None:
    """Symbols of four, read as of three."""
    with pytest.raises(FrameError, match="symbols beyond the alphabet"):
        entropy.decode(entropy.encode(np.full(50, 3), 4), 50, 3)


# The library may be missing


def test_without_constriction(monkeypatch: pytest.MonkeyPatch) -> None:
    x: Any = np.ones(10, np.float32)
    message = VariableLength().encode(x)
    monkeypatch.setitem(sys.modules, "constriction", None)
    for call in (
        lambda: entropy.encode(np.zeros(4, np.int32), 4),
        lambda: entropy.decode(b"", 4, 4),
        lambda: VariableLength().encode(x),
        lambda: VariableLength().decode(message),
    ):
        with pytest.raises(ConfigError, match=r'pip install "\.\[dme\]"'):
            call()
    StochasticLevels(4).encode(x)  # needs nothing of it
