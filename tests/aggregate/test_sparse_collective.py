"""Lossless collectives between real processes: the bits of the dense sum in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sumwire import ConfigError, Lattice, Sparse
from sumwire.aggregate import cost
from sumwire.aggregate.collective import Collective
from sumwire.aggregate.meter import Meter
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


def averages(rank: int, n: int, dtype: torch.dtype) -> list[NDArray[np.float32]]:
    with Collective(Sparse(n)) as group:
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    results = ranks.run(3, averages, dtype)
    for k, case in enumerate(CASES):
        xs = [torch.from_numpy(sparse(rank, *case)).to(dtype).float().numpy() for rank in range(3)]
        expected = torch.from_numpy(in_rank_order(xs)).to(dtype).float().numpy()
        for result in results:
            np.testing.assert_array_equal(result[k], expected)


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
