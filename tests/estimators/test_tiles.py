"""Bounded memory, and bit-identical results with any number of BLAS threads."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from sumwire.estimators.kmeans_rows import assign, nearest
from sumwire.estimators.partitions import split
from sumwire.estimators.pca import project, squared_deviations
from sumwire.estimators.tiles import TILE_VALUES, single_blas_thread, tiles


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.fixture
def two_blas_threads() -> Iterator[None]:
    """Set by a thread that has ended: threadpoolctl obeys no other thread while it lives."""

    def set_to(threads: int) -> None:
        with ThreadPoolExecutor(1) as gone:
            gone.submit(threadpool_limits, threads, "blas").result()

    before = max(blas_threads())
    set_to(2)
    yield
    set_to(before)


def test_tiles_cover_all_rows_and_leave_room_for_results() -> None:
    rows = np.asfortranarray(np.ones((5, 16), np.float32))
    pieces = list(tiles(rows, np.zeros(16), width=TILE_VALUES // 2))
    assert [piece.stop - piece.start for piece, _ in pieces] == [2, 2, 1]
    assert all(tile.flags.c_contiguous and tile.dtype == np.float64 for _, tile in pieces)
    assert [len(tile) for _, tile in tiles(rows, np.zeros(16), width=TILE_VALUES * 9)] == [1] * 5


RANDOM = np.random.default_rng(0)
ROWS, CENTERS, BASIS = RANDOM.normal(size=(3000, 300)), RANDOM.normal(size=(37, 300)), RANDOM.normal(size=(300, 37))
WORK: list[Callable[[Any], bytes]] = [
    lambda rows: assign(0, rows, None, CENTERS, True).vector.tobytes(),
    lambda rows: project(0, rows, np.zeros(300), BASIS, np.zeros((300, 37))).vector.tobytes(),
    lambda rows: squared_deviations(0, rows, np.zeros(300)),
]


@pytest.mark.parametrize("work", WORK)
def test_the_same_bits_for_any_number_of_threads_and_any_layout(work: Callable[[Any], bytes]) -> None:
    found = set()
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            found |= {work(ROWS), work(np.asfortranarray(ROWS))}
    assert len(found) == 1


def test_partitions_have_one_thread_each_and_give_the_others_back() -> None:
    with threadpool_limits(2, "blas"):
        with split(ROWS, 8, None) as partitions:
            seen = partitions.run(lambda rank: single_blas_thread(blas_threads)()).items
        assert {count for counts in seen for count in counts} == {1}
        assert set(blas_threads()) == {2}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_threads_are_given_back_after_an_error(two_blas_threads: None, error: type[BaseException]) -> None:
    @single_blas_thread
    def work(rank: int) -> None:
        if rank == 0:
            raise error
        time.sleep(0.1)  # inside, when the error leaves the partitions

    with pytest.raises(error), split(ROWS, 2, None) as partitions:
        partitions.run(work)
    assert set(blas_threads()) == {2}
    with pytest.raises(ValueError, match="NaN"), split(np.full((2, 2), np.nan), 2, None):
        pass
    assert set(blas_threads()) == {2}


def test_threads_are_given_back_after_concurrent_work(two_blas_threads: None) -> None:
    def work(seconds: float) -> None:
        with split(ROWS, 2, None) as partitions:
            partitions.run(single_blas_thread(lambda rank: time.sleep(seconds)))

    with ThreadPoolExecutor(3) as pool:  # its threads outlive their work
        for _ in range(3):
            list(pool.map(work, (0.02, 0.06, 0.04)))
            assert set(blas_threads()) == {2}


def test_memory_does_not_grow_with_the_rows() -> None:
    rows = np.zeros((1 << 18, 32), np.float32)
    centers = np.eye(8, 32)  # all at the same distance, so that products cannot decide any label
    tracemalloc.start()
    nearest(rows, centers)
    assign(0, rows, None, centers, True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < rows.nbytes  # in float64 the rows alone would take twice that
