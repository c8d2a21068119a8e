"""Lossless sums between real processes: the bits of the dense sum in rank order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sumwire import MismatchError, RoundError, Sparse
from sumwire.aggregate.group.group import Group
from sumwire.codec.sparse.compact import Compact
from tests import ranks
from tests.aggregate.group.inputs import Floats, averages, in_rank_order, rounds_over, sparse

CASES = [(0, 0.5), (1, 1.0), (65, 0.1), (5000, 0.0), (5000, 0.01), (5000, 0.5), (5000, 1.0), (70_001, 0.003)]


def overlapping(rank: int, n: int, dtype: torch.dtype, shards: int = 0) -> list[Floats]:
    with rounds_over(Sparse(n, shards=shards)) as rounds:
        tensors = [torch.from_numpy(sparse(rank, *case)).to(dtype) for case in CASES]
        return [mean.float().numpy() for mean in averages(rounds, tensors)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 9])
def test_every_rank_gets_the_bits_of_the_sum_in_rank_order(n: int) -> None:
    results = ranks.run(n, overlapping, torch.float32)
    for k, case in enumerate(CASES):
        expected = in_rank_order([sparse(rank, *case) for rank in range(n)])
        for result in results:
            assert result[k].tobytes() == expected.tobytes()


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_a_codec_may_have_more_or_fewer_shards_than_there_are_ranks(shards: int) -> None:
    results = ranks.run(3, overlapping, torch.float32, shards)
    for k, case in enumerate(CASES):
        expected = in_rank_order([sparse(rank, *case) for rank in range(3)])
        for result in results:
            assert result[k].tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    results = ranks.run(3, overlapping, dtype)
    for k, case in enumerate(CASES):
        xs = [torch.from_numpy(sparse(rank, *case)).to(dtype).float().numpy() for rank in range(3)]
        expected = torch.from_numpy(in_rank_order(xs)).to(dtype).float().numpy()
        for result in results:
            np.testing.assert_array_equal(result[k], expected)


def float64(rank: int, n: int) -> Floats:
    with Group(Sparse(n)) as group:
        mean: Floats = group.average(np.full(10, 1.0 + rank * 2**-40))
        return mean


def test_float64_is_averaged_in_its_own_dtype() -> None:
    for result in ranks.run(2, float64):
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, 1.0 + 2**-41)


def test_every_rank_of_a_large_group_owns_a_shard() -> None:
    """As many as no test starts: by default a codec has 64 shards at most."""
    codec = Sparse(1000).for_owners(1000)
    assert (codec.workers, codec.shards) == (1000, 1000)
    assert codec.edges(codec.empty_terms((10**6,)), 1000) == tuple(range(1001))


def different(rank: int, n: int, what: str, algorithm: str) -> str:
    x = torch.zeros(4096 if what == "size" and rank else 8192, dtype=torch.float16 if what == "kind" and rank else None)
    x = x.view(-1, 64 if what == "shape" and rank else 32)
    x[0, 7] = 1
    with Group(Sparse(n), algorithm=algorithm) as group:  # type: ignore[arg-type]
        with pytest.raises((MismatchError, RoundError)) as raised:
            group.average(x)
        return str(raised.value)


@pytest.mark.parametrize("what", ["size", "kind", "shape"])
def test_ranks_with_different_tensors_are_found_out(what: str) -> None:
    for said in ranks.run(3, different, what, "sharded"):
        assert what in said
        assert "differs" in said


def compacted(rank: int, n: int) -> Floats:
    with Group(Compact(n), algorithm="sharded") as group:
        mean: Floats = group.average((np.arange(1000) % 7 == rank).astype(np.float32))
        return mean


def test_compaction_by_owners_is_the_true_mean() -> None:
    """Its sums have sizes that follow from the terms, but are packed elsewhere than in the memory that is gathered."""
    truth = np.mean([np.arange(1000) % 7 == rank for rank in range(3)], axis=0)
    for result in ranks.run(3, compacted):
        np.testing.assert_allclose(result, truth, rtol=1e-6)
