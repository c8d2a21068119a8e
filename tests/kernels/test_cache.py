"""Caches are bounded by the memory they hold, as the system counts it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.kernels import lattice as kernels
from sumwire.kernels.arrays import ByteCache
from sumwire.kernels.lattice import blocks

MIB = 1 << 20


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(0, 30))
def test_what_is_held_is_what_was_used_last_and_fits(asked: list[int], limit: int) -> None:
    made: list[int] = []

    def make(size: int) -> bytes:
        made.append(size)
        return bytes(size)

    cache = ByteCache(make, limit, len)
    recent: list[int] = []
    for size in asked:
        before = len(made)
        assert cache(size) == bytes(size)
        assert (len(made) == before) == (size in recent)
        recent = [each for each in recent if each != size] + ([size] if size <= limit else [])
        while sum(recent) > limit:
            del recent[0]
        assert (cache.nbytes, len(cache)) == (sum(recent), len(recent))


def test_threads_may_ask_at_once() -> None:
    cache = ByteCache(lambda size: np.zeros(size, np.uint8), 5000, lambda array: array.nbytes)
    with ThreadPoolExecutor(4) as pool:
        sizes = [k * 37 % 900 for k in range(2000)]
        assert [len(found) for found in pool.map(cache, sizes)] == sizes
    assert cache.nbytes <= 5000


@pytest.mark.parametrize(
    ("script", "limit"),
    [
        # 16 MiB each, of 20 tensors; and 8 GiB, if block starts were built because somebody names a size.
        ("for k in range(20): kernels.block_sizes((1 << 27) + 64 * k, 6)", 200),
        ("for k in range(20): assert sum(deal((1 << 36) - k, 64, 64).bits) == (1 << 36) - k", 40),
        ("for k in range(25): deal((1 << 27) - 64 * k, 4, 64).starts", 300),
    ],
)
def test_peak_memory(script: str, limit: int) -> None:
    program = f"""
import resource, sys
from sumwire.kernels import lattice as kernels
from sumwire.codec.sparse.sharding import deal
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
{script}
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < limit * MIB


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_blocks_are_whole_ones_and_descending_powers_of_two(size: int, log_block: int) -> None:
    sizes = blocks.block_sizes(size, log_block)
    whole = size >> log_block
    assert (sizes[:whole] == 1 << log_block).all()
    assert sizes.sum() == size
    assert (np.diff(sizes[whole:]) < 0).all()
    assert all(int(each).bit_count() == 1 for each in sizes[whole:])
    assert kernels.block_sizes(size, log_block).tolist() == sizes.tolist()
