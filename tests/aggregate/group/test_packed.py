"""Where only sums and maxima are to be had, every codec works: lanes in words, unions, or emulated exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sumwire import Codec, Lattice, Sketch, Sparse, average
from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from sumwire.codec.rows.codec import Rows
from sumwire.codec.sparse.compact import Compact
from sumwire.kernels import lattice as kernels
from tests import ranks
from tests.aggregate.group.inputs import Floats, gradient, in_rank_order, register_sum_only, sparse

CASES = [(0, 0.5), (1, 1.0), (65, 0.1), (5000, 0.0), (5000, 0.01), (5000, 0.5), (5000, 1.0), (70_001, 0.003)]
CODECS: dict[str, Callable[[int], Codec]] = {
    "lattice": lambda n: Lattice(n, 4),
    "residual": lambda n: Lattice(n, 3, feedback=True),
    "sketch": Sketch,
    "stuck": lambda n: Sketch(n, rows_per_nonzero=0.3),
}


def finite(name: str, rank: int, size: int) -> Floats:
    x = gradient(rank, size)
    return x if name in ("lattice", "residual") else x * (np.random.default_rng((rank, size)).random(size) < 0.05)


def summed_only(rank: int, n: int, sizes: list[int]) -> dict[str, list[Floats]]:
    backend, found = register_sum_only(), {}
    for name, build in CODECS.items():
        with Group(build(n), backend=backend) as group:
            found[name] = [group.average(finite(name, rank, s), round_id=k) for k, s in enumerate(sizes)]
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_group_that_can_only_sum_has_the_bits_of_average(n: int) -> None:
    sizes = [0, 1, 7, 1000, 20_000]
    results = ranks.run(n, summed_only, sizes)
    for name, build in CODECS.items():
        for k, size in enumerate(sizes):
            codec = build(n).for_plain_sums()  # nobody owns a sum, to narrow it
            expected = average(codec, [finite(name, rank, size) for rank in range(n)], round_id=k)
            for result in results:
                np.testing.assert_array_equal(result[name][k], expected, err_msg=f"{name}, {size} values")


def exact_values(rank: int, n: int) -> list[Floats]:
    """NaN at one rank, through a group that can only sum."""
    found = []
    with Group(Lattice(n, 4), backend=register_sum_only()) as group:
        for codec in (Lattice(n, 4), Sketch(n)):
            x = gradient(rank, 3000)
            x[5] = np.nan if rank == 1 else 1
            found.append(group.average(x, codec=codec))
    return found


def test_a_group_that_can_only_sum_averages_nan_too() -> None:
    inputs = [gradient(rank, 3000) for rank in range(3)]
    expected = np.mean(inputs, axis=0)
    for result in ranks.run(3, exact_values):
        for mean in result:
            assert np.isnan(mean[5])
            np.testing.assert_allclose(np.delete(mean, 5), np.delete(expected, 5), rtol=1e-5, atol=1e-6)


def compacted(rank: int, n: int, sum_only: bool) -> tuple[list[Floats], list[int]]:
    backend = register_sum_only() if sum_only else None
    found, sent = [], []
    with Group(Sparse(n), backend=backend, algorithm="auto" if sum_only else "packed") as group:
        assert group.prepare(group.codec) == Compact(n)
        for k, case in enumerate(CASES):
            work, x = Workspace(), torch.from_numpy(sparse(rank, *case))
            mean = Round(group, x, group.codec, round_id=k, out=x, workspace=work).run()
            found.append(mean.numpy())
            sent.append(work.statistics.sent)
    return found, sent


@pytest.mark.parametrize("sum_only", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_compaction_sums_the_union(n: int, sum_only: bool) -> None:
    results = ranks.run(n, compacted, sum_only)
    for k, case in enumerate(CASES):
        expected = in_rank_order([sparse(rank, *case) for rank in range(n)])
        for result, _ in results:
            np.testing.assert_array_equal(result[k], results[0][0][k])
            if n == 2:  # there is only one order
                assert np.array_equal(result[k], expected, equal_nan=True)
            else:
                np.testing.assert_allclose(result[k], expected, rtol=1e-5, atol=1e-6)
    for _, sent in results:
        assert sent[-1] < 2 * CASES[-1][0]  # of 8 bytes per coordinate


def rows_by_sums(rank: int, n: int) -> Any:
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randperm(500, generator=generator)[:40]
    values = torch.randn(40, 3, generator=generator)
    table = torch.sparse_coo_tensor(numbers[None], values, (500, 3), check_invariants=True)
    with Group(Rows(n), backend=register_sum_only()) as group:
        return table.to_dense().numpy(), group.average(table).to_dense().numpy()


def test_rows_by_sums() -> None:
    results = ranks.run(3, rows_by_sums)
    expected = in_rank_order([own for own, _ in results])
    for _, mean in results:
        np.testing.assert_array_equal(mean, expected)


def test_256_ranks_add_by_plain_sums_of_words() -> None:
    n, size = 256, 1500
    codec = Lattice(n, 4)
    xs = [gradient(rank, size) for rank in range(n)]
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    expected = codec.add(payloads)
    total = np.zeros(len(payloads[0].summands()), np.int64)
    for payload in payloads:
        total += payload.summands()
        assert abs(total).max() < 1 << 31  # at no time may a 32-bit adder overflow, whatever it would do then
    read = codec.read_summands(terms, total.astype(np.int32), count=n, round_id=0)
    np.testing.assert_array_equal(read.lanes, expected.lanes)
    assert len(total) == int(kernels.words(codec.scheme, terms.sizes, terms.layout(codec).classes).sum())


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 17, 30, 64, 255, 256, 1000])
@pytest.mark.parametrize("bits", [1, 2, 4, 5, 8])
def test_words_hold_the_largest_sums_without_overflow(workers: int, bits: int) -> None:
    for spec in Lattice(workers, bits).scheme.lattices[1:]:
        assert spec is not None
        full = sum(spec.granularity << spec.lane_bits * k for k in range(spec.lanes_per_word))
        assert spec.lanes_per_word * spec.lane_bits <= 32
        assert -workers * spec.word_bias >= -(1 << 31)
        assert workers * (full - spec.word_bias) < 1 << 31
