"""The definition itself: transforms, packing, randomness and checksum against what is known of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.kernels import hashing
from sumwire.kernels.lattice import blocks, reference
from sumwire.kernels.lattice.scheme import TableSpec

crc32c = hashing.crc32c.__wrapped__  # type: ignore[attr-defined]


@pytest.mark.parametrize("log_size", range(7))
def test_fwht_is_the_hadamard_matrix(log_size: int) -> None:
    matrix = np.array([[1]])
    for _ in range(log_size):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = np.random.default_rng(0).integers(-99, 99, (3, 1 << log_size))
    assert (blocks.fwht(x) == x @ matrix).all()


@given(st.integers(0, 10**6), st.integers(0, 20))
def test_blocks_cover_the_tensor_without_padding(size: int, log_block: int) -> None:
    sizes = blocks.block_sizes(size, log_block)
    assert sizes.sum() == size
    assert all(s & (s - 1) == 0 for s in sizes.tolist())
    assert (np.diff(sizes) <= 0).all()


@given(st.integers(1, 32), st.integers(0, 10), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_packing_is_a_bijection(width: int, log_size: int, rows: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 1 << width, (rows, 1 << log_size))
    bits = blocks.pack_planes(values, width)
    assert bits.shape == (rows, width << log_size)
    assert (blocks.unpack_planes(bits, 1 << log_size, width) == values).all()


def test_packing_of_a_known_row() -> None:
    # 3 bits = a plane of 2 (low bits) and a plane of 1; of 8 lanes, bytes 0 and 1 hold the first.
    lanes = np.array([[1, 2, 3, 4, 5, 6, 7, 0]])
    packed = np.packbits(blocks.pack_planes(lanes, 3), bitorder="little")
    low = [1 | 3 << 2 | 1 << 4 | 3 << 6, 2 | 0 << 2 | 2 << 4 | 0 << 6]
    assert packed.tolist() == [*low, 0b01111000]


def test_random_words_are_uniform_and_signs_balanced() -> None:
    # Chi-square over 256 cells of 2^16 words: 255 +- 5 * 22.6 holds but once in a million draws.
    words = blocks.noise_words(12345, 1 << 10, np.arange(64)).reshape(-1)
    counts = np.bincount(words >> np.uint32(8), minlength=256)
    assert abs(((counts - 256.0) ** 2 / 256.0).sum() - 255) < 5 * 22.6
    assert abs(blocks.signs(99, 1 << 16).sum()) < 5 * 256


@pytest.mark.parametrize(("data", "crc"), [(b"", 0), (b"123456789", 0xE3069283), (b"\0" * 32, 0x8A9136AA)])
def test_crc32c_of_known_strings(data: bytes, crc: int) -> None:
    assert crc32c(np.frombuffer(data, np.uint8)) == crc


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_crc32c_continues(data: bytes, cut: int) -> None:
    whole = np.frombuffer(data, np.uint8)
    assert crc32c(whole[cut:], crc32c(whole[:cut])) == crc32c(whole)


@given(st.sets(st.integers(1, 200), min_size=1, max_size=15))
def test_table_inverse(values: set[int]) -> None:
    table = TableSpec.of((0, *sorted(values)))
    for cell in range(int(table.values[-1])):
        z = int(table.lower[cell])
        assert table.values[z] <= cell < table.values[z + 1]
        assert table.gap[z] == table.values[z + 1] - table.values[z]
    assert table.gap[-1] == 1


WIDTHS = tuple(range(9))


def test_equal_scales_get_equal_widths_and_the_rest_of_the_budget_is_used() -> None:
    out = np.zeros(10, np.uint8)
    reference.allocate(np.ones(10, np.float32), 640, 6, 4 * 640, 256, WIDTHS, 1, out)
    assert out.tolist() == [4] * 10
    reference.allocate(np.ones(10, np.float32), 640, 6, 4 * 640 + 130, 256, WIDTHS, 1, out)
    assert out.tolist() == [5, 5] + [4] * 8


def test_a_block_of_twice_the_scale_gets_one_bit_more() -> None:
    out = np.zeros(4, np.uint8)
    scales = np.array([1, 2, 4, 8], np.float32)
    reference.allocate(scales, 256, 6, (1 + 2 + 3 + 4) * 64, 256, WIDTHS, 0, out)
    assert out.tolist() == [1, 2, 3, 4]
    reference.allocate(scales, 256, 6, 10 * 64, 0, WIDTHS, 0, out)
    assert out.tolist() == [3, 3, 2, 2]
