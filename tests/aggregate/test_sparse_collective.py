"""Lossless collectives between real processes: the bits of the dense sum in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sumwire.aggregate.collective import Collective
from sumwire.aggregate.meter import Meter
from sumwire.aggregate.rows_route import _straight
from sumwire.aggregate.sparse_route import SparseRoute

from sumwire import ConfigError, InputError, Lattice, Sparse, SumwireError
from sumwire.aggregate.group import cost
from tests import ranks
from tests.aggregate.test_collective import SumOnly

CASES = [(0, 0.5), (1, 1.0), (65, 0.1), (5000, 0.0), (5000, 0.01), (5000, 0.5), (5000, 1.0), (70_001, 0.003)]


def sparse(rank: int, size: int, density: float, seed: int = 0) -> NDArray[np.float32]:
    """Some non-zeros, among them what floats have to offer."""
    rng = np.random.default_rng((seed, rank, size))
    x = np.where(rng.random(size) < density, rng.standard_normal(size), 0).astype(np.float32)
    if size > 100:
        odd = [np.nan, np.inf, -np.inf, -0.0, 1e-45, -3e38, 3e38]
        x[rng.integers(0, size, len(odd))] = odd
        x[[7, 8]] = -0.0, np.inf  # at every rank
    return x


def in_rank_order(xs: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    total = xs[0].copy()
    with np.errstate(all="ignore"):
        for x in xs[1:]:
            total += x
        mean: NDArray[np.float32] = total / np.float32(len(xs))
    return mean


def averages(rank: int, n: int, dtype: torch.dtype, shards: int = 0) -> list[NDArray[np.float32]]:
    with Collective(Sparse(n, shards=shards)) as group:
        tensors = [torch.from_numpy(sparse(rank, *case)).to(dtype) for case in CASES]
        futures = [group.average_async(t, round_id=k) for k, t in enumerate(tensors)]
        return [future.wait().float().numpy() for future in futures]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 9])
def test_every_rank_gets_the_bits_of_the_sum_in_rank_order(n: int) -> None:
    results = ranks.run(n, averages, torch.float32)
    for k, case in enumerate(CASES):
        expected = in_rank_order([sparse(rank, *case) for rank in range(n)])
        for result in results:
            assert result[k].tobytes() == expected.tobytes()


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_a_codec_may_have_more_or_fewer_shards_than_there_are_ranks(shards: int) -> None:
    results = ranks.run(3, averages, torch.float32, shards)
    for k, case in enumerate(CASES):
        expected = in_rank_order([sparse(rank, *case) for rank in range(3)])
        for result in results:
            assert result[k].tobytes() == expected.tobytes()


def test_every_rank_of_a_large_group_owns_a_shard() -> None:
    """As many as no test starts: by default a codec has 64 shards at most."""
    codec = SparseRoute(Sparse(1000)).codec
    assert (codec.workers, codec.shards) == (1000, 1000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    results = ranks.run(3, averages, dtype)
    for k, case in enumerate(CASES):
        xs = [torch.from_numpy(sparse(rank, *case)).to(dtype).float().numpy() for rank in range(3)]
        expected = torch.from_numpy(in_rank_order(xs)).to(dtype).float().numpy()
        for result in results:
            np.testing.assert_array_equal(result[k], expected)


TABLES = [(1, (1,)), (40, (3,)), (500, (2, 4)), (2000, (16,)), (64, ())]


def rows(rank: int, n: int, case: int, dtype: torch.dtype, crowded: bool) -> torch.Tensor:
    """As an embedding's backward makes it: rows in any order, some twice, some ranks without any."""
    table, shape = TABLES[case]
    rng = np.random.default_rng((rank, case))
    count = 0 if rank == 2 and case == 1 else int(rng.integers(1, table + 1 if crowded else table // 20 + 2))
    numbers = rng.integers(0, table, count)
    values = rng.standard_normal((count, *shape)).astype(np.float32)
    odd = rng.random(values.shape)
    for at, value in enumerate((np.nan, np.inf, -np.inf, -0.0, -0.0, 0.0, 1e-40)):
        values[(odd > at / 20) & (odd < (at + 1) / 20)] = value
    return torch.sparse_coo_tensor(
        torch.from_numpy(numbers)[None], torch.from_numpy(values).to(dtype), (table, *shape), check_invariants=True
    )


def dense(tensor: torch.Tensor) -> NDArray[np.float32]:
    """As it is: torch's own way adds to zeros, which changes -0.0, and adds rows that come twice in another order."""
    whole = torch.zeros(tensor.shape, dtype=tensor.dtype)
    whole[tensor.coalesce().indices()[0]] = tensor.coalesce().values()
    return whole.float().numpy()


def averages_of_rows(rank: int, n: int, dtype: torch.dtype, crowded: bool) -> list[Any]:
    with Collective(Sparse(n)) as group:
        tensors = [rows(rank, n, case, dtype, crowded) for case in range(len(TABLES))]
        futures = [group.average_rows(tensor, round_id=k) for k, tensor in enumerate(tensors)]
        means = [future.wait() for future in futures]
        assert all(mean.is_coalesced() or n == 1 for mean in means)
        return [(mean.dtype, mean.shape, dense(mean)) for mean in means]


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize(
    ("n", "dtype"),
    [(1, torch.float32), (2, torch.float32), (4, torch.float32), (9, torch.float32), (3, torch.float16),
     (3, torch.bfloat16)],
)  # fmt: skip
def test_rows_have_the_bits_of_the_dense_sum(n: int, dtype: torch.dtype, crowded: bool) -> None:
    results = ranks.run(n, averages_of_rows, dtype, crowded)
    for case in range(len(TABLES)):
        xs = [dense(rows(rank, n, case, dtype, crowded)) for rank in range(n)]
        expected = torch.from_numpy(in_rank_order(xs) if n > 1 else xs[0]).to(dtype)
        for result in results:
            assert result[case][:2] == (dtype, expected.shape)
            if dtype == torch.float32:
                assert result[case][2].tobytes() == expected.numpy().tobytes()
            else:
                np.testing.assert_array_equal(result[case][2], expected.float().numpy())


def bytes_of_rows(rank: int, n: int, same: bool) -> tuple[int, int]:
    generator = torch.Generator().manual_seed(0 if same else rank)
    numbers = torch.randperm(10_000, generator=generator)[:300]
    tensor = torch.sparse_coo_tensor(numbers[None], torch.ones(300, 64), (10_000, 64), check_invariants=True)
    meter = Meter()
    with Collective(Sparse(n)) as group:
        group.average_rows(tensor, round_id=0, meter=meter).wait()
    return meter.sent, meter.plain_sent


def test_rows_never_cost_more_than_sending_all_to_all() -> None:
    own = 300 * 64 * 4
    for sent, plain in ranks.run(4, bytes_of_rows, False):
        assert plain == 3 * (own + 300 * 8)
        assert sent < 1.03 * 3 * own  # straight to all: the union is nearly as large as all together


@pytest.mark.parametrize(("counts", "straight"), [([12, 12, 12, 12], True), ([900, 900, 900, 900], False)])
def test_the_shorter_way_is_taken(counts: list[int], straight: bool) -> None:
    assert _straight(np.array(counts), 1000) is straight


def test_rows_that_cannot_be_summed_are_refused() -> None:
    said = ranks.run(2, refused_rows)[0]
    assert "torch.float64" in said


def refused_rows(rank: int, n: int) -> str:
    tensor = torch.eye(3, dtype=torch.float64).to_sparse()
    with Collective(Sparse(n)) as group:
        try:
            group.average_rows(tensor, round_id=0)
        except InputError as error:
            return str(error)
    return ""


def no_rows(rank: int, n: int) -> int:
    with Collective(Sparse(n)) as group:
        tensor = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 4), (50, 4))
        return int(group.average_rows(tensor, round_id=0).wait()._nnz())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_ranks_may_all_have_no_rows() -> None:
    assert ranks.run(9, no_rows) == [0] * 9


def different(rank: int, n: int, what: str) -> str:
    x = torch.zeros(4096 if what == "size" and rank else 8192, dtype=torch.float16 if what == "kind" and rank else None)
    x[7] = 1
    with Collective(Sparse(n)) as group:
        try:
            if what == "rows":
                table = 50 + rank
                coo = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (table, 2), check_invariants=True)
                group.average_rows(coo, round_id=0).wait()
            else:
                group.average(x, round_id=0)
        except (SumwireError, RuntimeError) as error:  # what futures make of ours
            return str(error)
    return ""


@pytest.mark.parametrize("what", ["size", "kind", "rows"])
def test_ranks_with_different_tensors_are_found_out(what: str) -> None:
    for said in ranks.run(3, different, what):
        assert what in said
        assert "differs" in said


def compacted(rank: int, n: int, backend: str | None) -> tuple[list[NDArray[np.float32]], list[int]]:
    if backend is not None:
        dist.Backend.register_backend(backend, SumOnly, devices=["cpu"])
    found, sent = [], []
    with Collective(Sparse(n), backend=backend, algorithm="auto" if backend else "compact") as group:
        assert group.choose(1000) == "compact"
        for k, case in enumerate(CASES):
            meter, x = Meter(), torch.from_numpy(sparse(rank, *case))
            group.average(x, round_id=k, meter=meter)
            found.append(x.numpy())
            sent.append(meter.sent)
    return found, sent


@pytest.mark.parametrize("backend", [None, "sum_only"])
@pytest.mark.parametrize("n", [2, 5])
def test_compaction_sums_the_union(n: int, backend: str | None) -> None:
    results = ranks.run(n, compacted, backend)
    for k, case in enumerate(CASES):
        expected = in_rank_order([sparse(rank, *case) for rank in range(n)])
        for result, _ in results:
            np.testing.assert_array_equal(result[k], results[0][0][k])
            if n == 2:  # there is only one order
                assert np.array_equal(result[k], expected, equal_nan=True)
            else:
                np.testing.assert_allclose(result[k], expected, rtol=1e-5, atol=1e-6)
    for _, sent in results:
        assert sent[-1] < 2 * CASES[-1][0]  # of 8 bytes a coordinate


def probed(rank: int, n: int) -> list[tuple[str, float]]:
    picked: list[tuple[str, float]] = []
    with Collective(Lattice(n, 4), algorithm="probe") as group:
        for k, density in enumerate((0.0, 0.002 * (rank + 1), 0.9)):
            rng = np.random.default_rng((rank, k))
            x = np.where(rng.random(200_000) < density, rng.standard_normal(200_000), 0)
            for dtype in (torch.float32, torch.float64):
                group.average(torch.from_numpy(x).to(dtype), round_id=k, picked=lambda *way: picked.append(way))
    return picked


def test_a_probed_round_goes_the_way_that_its_densest_rank_needs() -> None:
    results = ranks.run(3, probed)
    assert results[0] == results[1] == results[2]
    assert [way for way, _ in results[0]] == ["sparse", "sharded", "sparse", "sharded", "sharded", "sharded"]
    assert results[0][2][1] == pytest.approx(0.006, rel=0.2)


def float64(rank: int, n: int) -> NDArray[np.float64]:
    with Collective(Sparse(n)) as group:
        x = torch.full((10,), 1.0 + rank * 2**-40, dtype=torch.float64)
        return group.average(x, round_id=0).numpy()


def test_float64_goes_the_plain_way() -> None:
    for result in ranks.run(2, float64):
        np.testing.assert_array_equal(result, 1.0 + 2**-41)


def refusals(rank: int, n: int) -> list[str]:
    said = []
    for algorithm in ("sharded", "lanes", "probe"):
        algorithm_: Any = algorithm
        try:
            Collective(Sparse(n), algorithm=algorithm_)
        except ConfigError as error:
            said.append(str(error))
    return said


def test_a_sparse_codec_has_no_lanes() -> None:
    said = ranks.run(2, refusals)[0]
    assert len(said) == 3
    assert all("Sparse" in text for text in said)


def test_the_cost_rule_prefers_what_is_shorter() -> None:
    codec, size = Lattice(4, 4), 10_000_000

    def chosen(*densities: float, size: int = size, all_to_all: bool = True) -> str:
        way: Any = "sparse" if all_to_all else "compact"
        bits = cost.lossless_bits(way, 4, np.array(densities))
        return cost.choose_lossless(codec, 4, size, bits, all_to_all=all_to_all)

    assert chosen(0.0) == chosen(0.02) == "sparse"
    assert chosen(0.2) == "sharded"
    # A dense layer beside an embedding: as one density, 0.11 would seem too much.
    assert chosen(*[0.01] * 9, 1.0) == "sparse"
    assert chosen(0.11) == "sharded"
    assert chosen(0.0, all_to_all=False) == "compact"
    assert chosen(1.0, all_to_all=False) == "lanes"
    assert chosen(0.5, size=500) == "plain"
