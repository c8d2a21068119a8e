"""Bounded memory, and the same bits whatever BLAS may use."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from sumwire.estimators.kmeans_rows import assign, nearest
from sumwire.estimators.partitions import split
from sumwire.estimators.pca_rows import project, scatter
from sumwire.estimators.tiles import TILE_VALUES, steady, tiles


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_tiles_cover_all_rows_and_leave_room_for_results() -> None:
    rows = np.asfortranarray(np.ones((5, 16), np.float32))
    pieces = list(tiles(rows, np.zeros(16), width=TILE_VALUES // 2))
    assert [piece.stop - piece.start for piece, _ in pieces] == [2, 2, 1]
    assert all(tile.flags.c_contiguous and tile.dtype == np.float64 for _, tile in pieces)
    assert [len(tile) for _, tile in tiles(rows, np.zeros(16), width=TILE_VALUES * 9)] == [1] * 5


RANDOM = np.random.default_rng(0)
ROWS, CENTRES, BASIS = RANDOM.normal(size=(3000, 300)), RANDOM.normal(size=(37, 300)), RANDOM.normal(size=(300, 37))
WORK: list[Callable[[Any], bytes]] = [
    lambda rows: assign(0, rows, CENTRES, True).vector.tobytes(),
    lambda rows: project(0, rows, np.zeros(300), BASIS, np.zeros((300, 37))).vector.tobytes(),
    lambda rows: scatter(0, rows, np.zeros(300)),
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
            seen = partitions.run(lambda rank: steady(blas_threads)()).items
        assert {count for counts in seen for count in counts} == {1}
        assert set(blas_threads()) == {2}


def test_memory_does_not_grow_with_the_rows() -> None:
    rows = np.zeros((1 << 20, 8), np.float32)
    centres = np.eye(8)
    tracemalloc.start()
    nearest(rows, centres)
    assign(0, rows, centres, True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < rows.nbytes  # in float64 the rows alone would take twice that
