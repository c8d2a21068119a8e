"""A whole round in one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import (
    Codec,
    ConfigError,
    InputError,
    Lattice,
    MismatchError,
    Residual,
    RoundError,
    Sketch,
    Sparse,
    average,
)
from sumwire.aggregate.base import Workspace
from sumwire.aggregate.local import Local
from sumwire.aggregate.round import Round
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import RowSlices
from tests.strategies import gradients


@given(gradients(max_workers=5))
def test_average_is_the_four_verbs(xs: list[np.ndarray]) -> None:  # type: ignore[type-arg]
    codec = Lattice(5, 4)
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    total = codec.add([codec.encode(x, terms, rank=r, round_id=9) for r, x in enumerate(xs)])
    assert np.array_equal(average(codec, xs, round_id=9), codec.decode(total.narrow()))


@given(st.integers(0, 2**32 - 1))
def test_residuals_keep_what_does_not_arrive(seed: int) -> None:
    """Three of four tensors, in turn: nothing is counted twice, and nothing gets lost."""
    codec = Lattice(4, 3, block=64, feedback=True)
    rng, memories = np.random.default_rng(seed), [Residual(codec) for _ in range(3)]
    went_in, means = np.zeros(700), np.zeros(700)
    for round_id in range(5):
        xs = rng.standard_normal((3, 700)).astype("f4")
        went_in += xs.sum(axis=0, dtype="f8")
        means += average(codec, xs, round_id=round_id, residuals=memories)
    kept = np.sum([memory.value for memory in memories], axis=0, dtype="f8")
    np.testing.assert_allclose(4 * means + kept, went_in, atol=1e-4)


def test_any_iterable_will_do() -> None:
    codec = Lattice(3, 8)
    rows = np.arange(30, dtype=np.float32).reshape(3, 10)
    expected = average(codec, list(rows))
    assert np.array_equal(average(codec, rows), expected)
    assert np.array_equal(average(codec, (row for row in rows)), expected)


def test_wrong_calls() -> None:
    codec = Lattice(2, 4)
    with pytest.raises(ConfigError, match="nothing to average"):
        average(codec, [])
    with pytest.raises(ConfigError, match="rank 2"):
        average(codec, [np.ones(3, np.float32)] * 3)
    with pytest.raises(ConfigError, match="1 residuals for 2 tensors"):
        average(codec, [np.ones(3, np.float32)] * 2, residuals=[Residual(codec)])
    with pytest.raises(MismatchError, match="codec family differs"):
        average(codec, [np.ones(3, np.float32)], residuals=[Residual(Lattice(3))])
    with pytest.raises(MismatchError, match="shape differs"):
        average(codec, [np.ones(3, np.float32), np.ones(4, np.float32)])


def test_lists_and_scalars_are_arrays() -> None:
    for codec in (Lattice(2, 8), Sparse(2), Sketch(2)):
        assert np.allclose(average(codec, [[1.0, 2.0], [3.0, 4.0]]), [2, 3], atol=0.1)
        assert np.allclose(average(codec, [np.float32(1), np.float32(2)]), 1.5, atol=0.1)
    with pytest.raises(InputError, match="masked"):
        average(Lattice(2), [np.ma.masked_array([1.0, 2.0], [True, False])] * 2)


def test_rows_stay_rows() -> None:
    xs = [RowSlices((5, 2), np.array([rank]), np.ones((1, 2), np.float32)) for rank in range(2)]
    mean = average(Rows(2), xs)
    assert mean.numbers.tolist() == [0, 1]
    assert mean.values.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def in_threads(group: list[Local], work: Callable[[Local], Any]) -> list[Any]:
    """What each worker's thread returns, or raises."""

    def caught(worker: Local) -> Any:
        try:
            return work(worker)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(group)) as pool:
        return list(pool.map(caught, group))


@pytest.mark.parametrize("codec", [Lattice(3), Sparse(3), Sketch(3)], ids=lambda codec: type(codec).__name__)
def test_threads_with_different_tensors_are_all_found_out(codec: Codec) -> None:
    group = Local.create(3, codec)
    for found in in_threads(group, lambda worker: worker.average(np.ones(4 + worker.rank, np.float32))):
        assert isinstance(found, MismatchError)
        assert "shape differs" in str(found)


def test_a_worker_that_gives_up_or_leaves_holds_up_nobody() -> None:
    def broken(worker: Local) -> Any:
        return worker.average(np.ones(4, np.int64 if worker.rank == 1 else np.float32))

    found = in_threads(Local.create(3, Lattice(3)), broken)
    assert isinstance(found[1], InputError)
    for rank in (0, 2):
        assert isinstance(found[rank], RoundError)
        assert "worker 1 gave up" in str(found[rank])

    def leaves(worker: Local) -> Any:
        worker.average(np.ones(4, np.float32))
        if worker.rank == 2:
            worker.close()
        return worker.average(np.ones(4, np.float32))

    for each in in_threads(Local.create(3, Sparse(3)), leaves):
        assert isinstance(each, RoundError)
        assert "worker 2 has left" in str(each)


def test_shards_of_a_sum_are_those_of_the_whole() -> None:
    codec = Lattice(3, 4)
    xs = [np.random.default_rng(rank).standard_normal(5000).astype(np.float32) for rank in range(3)]
    terms = reduce(or_, map(codec.propose, xs))
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    whole = codec.add(payloads)
    edges = codec.edges(terms, 3)
    shards = in_threads(Local.create(3, codec), lambda worker: worker.add_shard(payloads[worker.rank]))
    for rank, shard in enumerate(shards):
        assert shard.packed().tobytes() == whole.part(edges[rank], edges[rank + 1]).packed().tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_exact_round_is_counted_once(dtype: Any) -> None:
    [alone], work = Local.create(1, Sparse(1)), Workspace()
    Round(alone, np.ones(1000, dtype), None, round_id=0, workspace=work).run()
    assert work.statistics.values == 1000


def test_shards_are_not_narrow() -> None:
    """A reduce-scatter has nothing to send down: it keeps the lanes, whoever adds."""
    codec = Lattice(2, 4, down_bits=3)
    xs = [np.random.default_rng(rank).standard_normal(40 * 512).astype(np.float32) for rank in range(2)]
    terms = codec.propose(xs[0]) | codec.propose(xs[1])
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    whole = codec.add(payloads)
    with ThreadPoolExecutor(2) as pool:
        shards = list(pool.map(lambda worker: worker.add_shard(payloads[worker.rank]), Local.create(2, codec)))
        sums = list(pool.map(lambda worker: worker.add(payloads[worker.rank]), Local.create(2, codec)))
    edges = codec.edges(terms, 2)
    for shard, (lo, hi) in zip(shards, pairwise(edges), strict=True):
        assert shard.packed().tobytes() == whole.part(lo, hi).packed().tobytes()
    for total in sums:
        assert total.packed().tobytes() == whole.narrow().packed().tobytes()
