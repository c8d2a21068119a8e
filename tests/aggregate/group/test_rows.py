"""Rows of tables between real processes: lossless, and never more bytes than sending all to all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sumwire import InputError, MismatchError, Sparse
from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.parts import RowsTerms
from sumwire.codec.rows.rows import RowSlices
from tests import ranks
from tests.aggregate.group.inputs import Floats, averages, in_rank_order, rounds_over

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


def dense(tensor: torch.Tensor) -> Floats:
    """As it is: torch's own way adds to zeros, which changes -0.0, and adds rows that come twice in another order."""
    whole = torch.zeros(tensor.shape, dtype=tensor.dtype)
    whole[tensor.coalesce().indices()[0]] = tensor.coalesce().values()
    return whole.float().numpy()


def averages_of_rows(rank: int, n: int, dtype: torch.dtype, crowded: bool) -> list[Any]:
    with rounds_over(Rows(n)) as rounds:
        means = averages(rounds, [rows(rank, n, case, dtype, crowded) for case in range(len(TABLES))])
        assert all(mean.is_coalesced() for mean in means)
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
    work = Workspace()
    with Group(Rows(n)) as group:
        Round(group, tensor, group.codec, round_id=0, workspace=work).run()
    return work.statistics.sent, work.statistics.plain_sent


def test_rows_never_cost_more_than_sending_all_to_all() -> None:
    own = 300 * 64 * 4
    for sent, plain in ranks.run(4, bytes_of_rows, False):
        assert plain == 3 * (own + 300 * 8)
        assert sent < 1.03 * 3 * own  # whole payloads to all: the union is nearly as large as all together


@pytest.mark.parametrize(("counts", "whole"), [([12, 12, 12, 12], True), ([900, 900, 900, 900], False)])
def test_whole_payloads_are_shared_where_that_is_less(counts: list[int], whole: bool) -> None:
    codec = Rows(4)
    terms = RowsTerms(codec, (1000, 16), 1000, 16, (1000, 16))
    assert codec.shares_whole_payloads(terms, [count * terms.row_bytes for count in counts]) is whole


def test_every_rank_of_a_large_group_owns_rows() -> None:
    codec = Rows(1000).for_owners(1000)
    assert codec.edges(RowsTerms(codec, (10**6, 4), 10**6, 4, (10**6, 4)), 1000) == tuple(range(1001))


def refused_rows(rank: int, n: int) -> str:
    with Group(Rows(n)) as group:
        with pytest.raises(InputError) as raised:
            group.average(torch.eye(3, dtype=torch.float64).to_sparse())
        assert torch.equal(group.average(torch.eye(3)), torch.eye(3))  # no rows: averaged exactly, as it is
        return str(raised.value)


def test_rows_that_cannot_be_summed_are_refused() -> None:
    for said in ranks.run(2, refused_rows):
        assert "torch.float64" in said
        assert "to_dense" in said


def no_rows(rank: int, n: int) -> int:
    with Group(Rows(n)) as group:
        tensor = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 4), (50, 4))
        return int(group.average(tensor)._nnz())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_ranks_may_all_have_no_rows() -> None:
    assert ranks.run(9, no_rows) == [0] * 9


def dense_mean(rank: int, n: int) -> Floats:
    table = torch.sparse_coo_tensor([[rank]], torch.full((1, 2), 3.0), (5, 2), check_invariants=True)
    with Group(Sparse(n)) as group:
        mean: Floats = group.average(table).numpy()
        return mean


def test_other_lossless_codecs_make_rows_dense() -> None:
    for mean in ranks.run(3, dense_mean):
        np.testing.assert_array_equal(mean, [[1, 1], [1, 1], [1, 1], [0, 0], [0, 0]])


def different(rank: int, n: int, crowded: bool, what: str) -> str:
    """Few rows are shared whole, many go to their owners: both find out."""
    table, width, dtype = 50, 2, np.dtype(np.float32)
    if rank == 1:
        table, width = {"size": (51, 2), "shape": (25, 4), "kind": (50, 2)}[what]
        dtype = np.dtype(np.float16 if what == "kind" else np.float32)
    numbers = np.arange(25 if crowded else 1)
    x = RowSlices((table, width), numbers, np.ones((len(numbers), width), dtype))
    with Group(Rows(n)) as group:
        with pytest.raises(MismatchError) as raised:
            group.average(x)
        return str(raised.value)


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("what", ["size", "shape", "kind"])
def test_ranks_with_different_tables_are_found_out(crowded: bool, what: str) -> None:
    for said in ranks.run(3, different, crowded, what):
        assert what in said
        assert "differs" in said
