"""Collectives between real processes give what `average` gives in one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sumwire.aggregate.collective import Collective

from sumwire import ConfigError, Lattice, Residual, average
from sumwire.aggregate.group import cost
from sumwire.kernels import backend
from sumwire.kernels import lattice as kernels
from tests import ranks

SIZES = [0, 1, 7, 63, 513, 5000] if backend.name() == "reference" else [0, 1, 7, 63, 513, 5000, 300_001]


def gradient(rank: int, size: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng((seed, rank, size))
    scale = np.exp(rng.standard_normal(size // 700 + 1)).repeat(700)[:size]
    return (rng.standard_normal(size) * scale).astype(np.float32)


def averages(rank: int, n: int, algorithm: Any, codec: Lattice) -> list[NDArray[np.float32]]:
    with Collective(codec, algorithm=algorithm) as group:
        tensors = [torch.from_numpy(gradient(rank, size)) for size in SIZES]
        # All at once, so that rounds overlap.
        futures = [group.average_async(t, round_id=k) for k, t in enumerate(tensors)]
        return [future.wait().numpy() for future in futures]


@pytest.mark.parametrize("algorithm", ["sharded", "lanes"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_rank_gets_the_bits_of_average(n: int, algorithm: str) -> None:
    codec = Lattice(n, 4, feedback=n % 2 == 0)
    results = ranks.run(n, averages, algorithm, codec)
    for k, size in enumerate(SIZES):
        inputs = [gradient(rank, size) for rank in range(n)]
        expected = inputs[0] if n == 1 else average(codec, inputs, round_id=k)
        for result in results:
            np.testing.assert_array_equal(result[k], expected)


@pytest.mark.parametrize("algorithm", ["sharded", "lanes"])
@pytest.mark.parametrize(
    "codec",
    [
        Lattice(3, 1),
        Lattice(3, 8, widths="fixed"),
        Lattice(3, total_bits=12),
        Lattice(3, 4, rotate=False, block=64),
        Lattice.thc(3, block=4096),
    ],
    ids=["1 bit", "8 bits", "both ways", "no rotation", "thc"],
)
def test_any_lattice(codec: Lattice, algorithm: str) -> None:
    for result in ranks.run(3, averages, algorithm, codec):
        for k, size in enumerate(SIZES):
            np.testing.assert_array_equal(
                result[k], average(codec, [gradient(rank, size) for rank in range(3)], round_id=k)
            )


def exact_and_kept(rank: int, n: int, algorithm: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    codec = Lattice(n, 3, feedback=True)
    positions, residual = torch.tensor([0, 5, 6, 7, 2999]), Residual(codec)
    means, truths = [], []
    with Collective(codec, algorithm=algorithm) as group:
        for step in range(12):
            x = gradient(rank, 3000, seed=step)
            x[positions] *= 1000
            mean = torch.from_numpy(x.copy())
            group.average(mean, round_id=step, residual=residual, exact=positions)
            means.append(mean.numpy())
            truths.append(np.mean([gradient(r, 3000, seed=step) for r in range(n)], axis=0))
            np.testing.assert_allclose(mean[positions], 1000 * truths[-1][positions], rtol=1e-5)
            assert not residual.value[positions].any()
    return np.sum(means, axis=0), np.sum(truths, axis=0)


@pytest.mark.parametrize("algorithm", ["sharded", "lanes"])
def test_exact_values_ride_along_and_residuals_catch_up(algorithm: str) -> None:
    results = ranks.run(3, exact_and_kept, algorithm)
    inner = [k for k in range(3000) if k not in (0, 5, 6, 7, 2999)]
    for mean, truth in results:
        np.testing.assert_array_equal(mean, results[0][0])
        # Twelve rounds of 3 bits: what was late is at most about a round's error.
        assert np.linalg.norm((mean - truth)[inner]) / np.linalg.norm(truth[inner]) < 0.15


def poisoned(rank: int, n: int, algorithm: Any, value: float, exact: bool) -> NDArray[np.float32]:
    codec = Lattice(n, 4, feedback=True)
    residual = Residual(codec)
    options: Any = {"residual": residual, "exact": torch.tensor([3, 700]) if exact else None}
    with Collective(codec, algorithm=algorithm) as group:
        group.average(torch.from_numpy(gradient(rank, 2000, 1)), round_id=1, **options)
        before = residual.value.copy()
        x = torch.from_numpy(gradient(rank, 2000, 2))
        if rank == n - 1:
            x[1234] = value
        group.average(x, round_id=2, **options)
        np.testing.assert_array_equal(residual.value, before)
        after = group.average(torch.from_numpy(gradient(rank, 2000, 3)), round_id=3, **options)
        assert np.isfinite(after.numpy()).all()
    return x.numpy()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_what_one_rank_cannot_encode_goes_the_plain_way_at_all(value: float, exact: bool) -> None:
    results = ranks.run(3, poisoned, "sharded", value, exact)
    inputs = [gradient(rank, 2000, 2) for rank in range(3)]
    inputs[2][1234] = value
    with np.errstate(invalid="ignore"):
        expected = np.sum([x * np.float32(1 / 3) for x in inputs], axis=0)
    for result in results:
        np.testing.assert_array_equal(result, results[0])
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_256_ranks_add_by_plain_sums_of_words() -> None:
    n, size = 256, 1500
    codec = Lattice(n, 4)
    xs = [gradient(rank, size) for rank in range(n)]
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    expected = codec.add(payloads)
    classes, blocks = terms.layout(codec).classes, len(terms.sizes)
    total = np.zeros(int(kernels.words(codec.scheme, terms.sizes, classes).sum()), np.int64)
    for payload in payloads:
        words = np.empty(len(total), np.int32)
        kernels.pack_words(codec.scheme, size, classes, codec.add([payload]).lanes, words, 0, blocks)
        total += words
        assert abs(total).max() < 1 << 31  # at no time may a 32-bit adder overflow, whatever it would do then
    lanes = np.empty_like(expected.lanes)
    kernels.unpack_words(codec.scheme, size, classes, total.astype(np.int32), n, lanes, 0, blocks)
    np.testing.assert_array_equal(lanes, expected.lanes)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 17, 30, 64, 255, 256, 1000])
@pytest.mark.parametrize("bits", [1, 2, 4, 5, 8])
def test_words_hold_the_largest_sums_without_overflow(workers: int, bits: int) -> None:
    for spec in Lattice(workers, bits).scheme.lattices[1:]:
        assert spec is not None
        full = sum(spec.granularity << spec.lane_bits * k for k in range(spec.lanes_per_word))
        assert spec.lanes_per_word * spec.lane_bits <= 32
        assert -workers * spec.word_bias >= -(1 << 31)
        assert workers * (full - spec.word_bias) < 1 << 31


class SumOnly(dist.ProcessGroup):
    """As little as an in-network adder offers: int32 and float32 all-reduce by SUM and MAX."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.inner = dist.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors: Any, options: Any) -> Any:
        assert tensors[0].dtype in (torch.int32, torch.float32)
        assert any(options.reduceOp == op for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX))
        return self.inner.allreduce(tensors, options)

    def getBackendName(self) -> str:
        return "sum_only"


def summed_only(rank: int, n: int) -> NDArray[np.float32]:
    dist.Backend.register_backend("sum_only", SumOnly, devices=["cpu"])
    with Collective(Lattice(n, 4), backend="sum_only") as group:
        assert group.choose(100_000) == "lanes"
        positions = torch.tensor([1, 2])
        mean = torch.from_numpy(gradient(rank, 100_000))
        group.average(mean, round_id=1, exact=positions)
        return mean.numpy()


def test_a_group_that_can_only_sum_gets_lanes() -> None:
    results = ranks.run(3, summed_only)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    expected = np.mean([gradient(rank, 100_000) for rank in range(3)], axis=0)
    assert np.linalg.norm(results[0] - expected) < 0.15 * np.linalg.norm(expected)


def refusals(rank: int, n: int) -> list[str]:
    said = []
    for build in (
        lambda: Collective(Lattice(n + 1)),
        lambda: Collective(Lattice(n), algorithm="ring"),  # type: ignore[arg-type]
        lambda: Collective(Lattice(n)).average(torch.zeros(3, 4), round_id=0),
        lambda: Collective(Lattice(n)).average(torch.zeros(8, dtype=torch.int64), round_id=0),
        lambda: Collective(Lattice(n)).average(torch.zeros(8)[::2], round_id=0),
    ):
        try:
            build()
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_refusals_say_what_is_wrong() -> None:
    said = ranks.run(2, refusals)[0]
    assert len(said) == 5
    assert "workers=2" in said[0]
    assert "ring" in said[1]
    for text in said[2:]:
        assert text.startswith("InputError")
        assert "flat, contiguous" in text


def test_without_a_process_group_it_says_so() -> None:
    with pytest.raises(ConfigError, match="init_process_group"):
        Collective(Lattice(1))


def test_the_cost_rule() -> None:
    codec = Lattice(4, 4)
    assert cost.choose(codec, 4, 10_000_000) == "sharded"
    assert cost.choose(codec, 4, 10_000_000, all_to_all=False) == "lanes"
    assert cost.choose(codec, 4, 1000) == "plain"
    # Sharded moves b + w bits instead of 64, terms aside.
    ratio = cost.bits_per_rank("plain", codec, 4, 1 << 20) / cost.bits_per_rank("sharded", codec, 4, 1 << 20)
    assert ratio == pytest.approx(64 / (codec.bits + codec.sum_bits + 64 / codec.block))
    assert cost.break_even(8e9, 2.0) == 4e9


def float64(rank: int, n: int) -> list[NDArray[np.float64]]:
    found = []
    with Collective(Lattice(n, 8), algorithm="sharded") as group:
        for large in (1e100, 3.0):
            x = torch.full((2000,), 1.0 + rank, dtype=torch.float64)
            x[5] = large
            group.average(x, round_id=int(large < 10), exact=torch.tensor([5]))
            found.append(x.numpy())
    return found


def test_exact_values_beyond_float32_go_the_plain_way() -> None:
    for beyond, within in ranks.run(2, float64):
        assert beyond[5] == 1e100
        assert within[5] == 3.0
        np.testing.assert_allclose(beyond[6:], 1.5)
        np.testing.assert_allclose(within[6:], 1.5, rtol=0.05)


def abandoned(rank: int, n: int) -> list[str]:
    """One rank leaves after two rounds; all that the other has submitted comes to an end, and so does close."""
    import time

    group = Collective(Lattice(n, 4), algorithm="sharded")
    errors: list[str] = []
    for k in range(2):
        group.submit(torch.ones(5000), round_id=k, done=lambda error: errors.append(str(error)))
    while len(errors) < 2:  # or a slow machine would still be at them when the others' time is up
        time.sleep(0.01)
    if rank:
        return errors
    for k in range(2, 9):
        group.submit(torch.ones(5000), round_id=k, done=lambda error: errors.append(str(error)))
    group.close()
    raise RuntimeError(repr(errors))


def test_after_a_failure_every_round_ends_and_close_returns() -> None:
    outcomes = ranks.outcomes_of(2, abandoned, timeout=40, group=3)
    assert outcomes[0][1].count("another rank has died or hangs") == 7
    assert outcomes[0][1].count("'None'") == 2
