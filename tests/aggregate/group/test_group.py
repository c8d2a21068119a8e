"""A process group gives every rank what `average` gives in one process, whatever goes wrong at one of them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from sumwire import ConfigError, Lattice, MismatchError, Residual, RoundError, Sketch, Sparse, SumwireError, average
from sumwire.aggregate.group import communicator
from sumwire.aggregate.group.communicator import Communicator
from sumwire.aggregate.group.exchange import Exchange
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.codec.base import Codec
from sumwire.kernels import backend
from tests import ranks
from tests.aggregate.group.inputs import Floats, averages, gradient, register_sum_only, rounds_over

SIZES = [0, 1, 7, 63, 513, 5000] if backend.name() == "reference" else [0, 1, 7, 63, 513, 5000, 300_001]


def overlapping(rank: int, n: int, codecs: list[Lattice]) -> list[list[list[Floats]]]:
    """By algorithm and codec."""

    def means(codec: Lattice, algorithm: Any) -> list[Floats]:
        with rounds_over(codec, algorithm=algorithm) as rounds:
            found = averages(rounds, [torch.from_numpy(gradient(rank, size)) for size in SIZES])
            return [mean.numpy() for mean in found]

    return [[means(codec, algorithm) for codec in codecs] for algorithm in ("sharded", "packed")]


def check(n: int, codecs: list[Lattice]) -> None:
    results = ranks.run(n, overlapping, codecs)
    # A plain SUM has no owner who could narrow it.
    for k, carried in enumerate((codecs, [codec.for_plain_sums() for codec in codecs])):
        for number, size in enumerate(SIZES):
            inputs = [gradient(rank, size) for rank in range(n)]
            for which, codec in enumerate(carried):
                expected = average(codec, inputs, round_id=number)
                for result in results:
                    np.testing.assert_array_equal(result[k][which][number], expected)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 8, 9])
def test_rounds_that_overlap_have_the_bits_of_average(n: int) -> None:
    check(n, [Lattice(n, 4, feedback=n % 2 == 0)])


def test_any_lattice() -> None:
    """Those that test_matrix does not have, and one of large blocks with a tensor that fills them."""
    check(3, [Lattice(3, 1), Lattice(3, 8, widths="fixed"), Lattice.thc(3, block=4096)])


def kept(rank: int, n: int, algorithm: Any) -> tuple[Floats, Floats]:
    codec = Lattice(n, 3, feedback=True)
    residual, means, truths = Residual(codec), [], []
    with Group(codec, algorithm=algorithm) as group:
        for step in range(12):
            x = torch.from_numpy(gradient(rank, 3000, seed=step))
            means.append(group.average(x, round_id=step, residual=residual, out=x).numpy())
            truths.append(np.mean([gradient(r, 3000, seed=step) for r in range(n)], axis=0))
    return np.sum(means, axis=0), np.sum(truths, axis=0)


@pytest.mark.parametrize("algorithm", ["sharded", "packed"])
def test_residuals_catch_up(algorithm: str) -> None:
    results = ranks.run(3, kept, algorithm)
    for mean, truth in results:
        np.testing.assert_array_equal(mean, results[0][0])
        # Twelve rounds of 3 bits: what was late is at most about a round's error.
        assert np.linalg.norm(mean - truth) / np.linalg.norm(truth) < 0.15


def poisoned(rank: int, n: int, algorithm: Any, values: list[float]) -> list[Floats]:
    codec = Lattice(n, 4, feedback=True)
    residual, found = Residual(codec), []
    with Group(codec, algorithm=algorithm) as group:
        group.average(torch.from_numpy(gradient(rank, 2000, 1)), residual=residual)
        for value in values:
            before = residual.value.copy()
            x = torch.from_numpy(gradient(rank, 2000, 2))
            if rank == n - 1:
                x[1234] = value
            found.append(group.average(x, residual=residual, out=x).numpy())
            np.testing.assert_array_equal(residual.value, before)
            after = group.average(torch.from_numpy(gradient(rank, 2000, 3)), residual=residual)
            assert np.isfinite(after.numpy()).all()
    return found


@pytest.mark.parametrize("algorithm", ["sharded", "packed"])
def test_what_one_rank_cannot_encode_is_averaged_exactly_by_all(algorithm: str) -> None:
    values = [np.nan, np.inf, -np.inf, 3e38]
    results = ranks.run(3, poisoned, algorithm, values)
    for k, value in enumerate(values):
        inputs = [gradient(rank, 2000, 2) for rank in range(3)]
        inputs[2][1234] = value
        with np.errstate(invalid="ignore"):
            expected = np.sum([x * np.float32(1 / 3) for x in inputs], axis=0)
        for result in results:
            np.testing.assert_array_equal(result[k], results[0][k])
            np.testing.assert_allclose(result[k], expected, rtol=1e-5, atol=1e-6)


def refusals(rank: int, n: int) -> list[str]:
    said = []
    for build in (
        lambda: Group(Lattice(n + 1)),
        lambda: Group(Lattice(n), algorithm="ring"),  # type: ignore[arg-type]
        lambda: Group(Lattice(n, 4 + rank)),
        lambda: Group(Lattice(n), settings={"learning rate": rank}),
        lambda: Group(Lattice(n)).average(torch.zeros(8, dtype=torch.int64)),
        lambda: Group(Lattice(n)).average(np.zeros(8, np.complex64)),
        lambda: Group(Sparse(n)).average(torch.zeros(8, dtype=torch.int64)),
    ):
        try:
            build()
        except SumwireError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_refusals_say_what_is_wrong() -> None:
    for said in ranks.run(2, refusals):
        assert len(said) == 7
        assert said[0].startswith("ConfigError")
        assert "workers=2" in said[0]
        assert said[1].startswith("ConfigError")
        assert "'ring' is not one of auto, sharded, packed" in said[1]
        assert said[2].startswith("MismatchError")
        assert "bits is 4 at rank 0 and 5 at rank 1" in said[2]
        assert "learning rate is 0 at rank 0 and 1 at rank 1" in said[3]
        for text in said[4:]:
            assert text.startswith("InputError")
            assert "use float32, float16, bfloat16 or float64" in text


def test_without_a_process_group_it_says_so() -> None:
    with pytest.raises(ConfigError, match="init_process_group"):
        Group(Lattice(1))


def numbered(rank: int, n: int) -> tuple[int, int, int]:
    with Group(Lattice(n)) as group:
        return group.session, group.next_round(), group.next_round()


def test_ranks_number_rounds_alike_and_groups_differently() -> None:
    first, second = ranks.run(2, numbered), ranks.run(2, numbered)
    assert first[0] == first[1]
    session, one, two = first[0]
    assert (one, two) == (session % (1 << 32), session % (1 << 32) + 1)
    assert second[0] != first[0]


def settings_differ(rank: int, n: int) -> str:
    with Group(Lattice(n)) as group:
        group.check_settings({"parameters": 7})
        with pytest.raises(MismatchError) as raised:
            group.check_settings({"parameters": 7 + rank})
        return str(raised.value)


def test_settings_are_compared_by_name_at_every_rank() -> None:
    for said in ranks.run(3, settings_differ):
        assert "parameters is 7 at rank 0 and 8 at rank 1" in said


def sums_differ(rank: int, n: int) -> list[str]:
    """Of one family, but one rank expects narrow sums of another length: gloo would end the process."""
    said = []
    with pytest.raises(MismatchError) as raised:
        Group(Lattice(n, down_bits=4 + rank))
    said.append(str(raised.value))
    with Group(Lattice(n)) as group:
        with pytest.raises(MismatchError) as raised:
            group.average(gradient(rank, 5000), codec=Lattice(n, down_bits=5) if rank else Lattice(n))
        said.append(str(raised.value))
    return said


def test_the_form_of_sums_is_compared_at_every_rank() -> None:
    for first, second in ranks.run(2, sums_differ):
        assert "form of sums is down_bits=4.0 at rank 0 and down_bits=5.0 at rank 1" in first
        assert "form of sums differs; it is down_bits=5.125 at rank 0 and down_bits=5.0 at rank 1" in second


class SlowToConnect(Group):
    """Rank 1 takes a while longer for each of its communicators than the others, and says so when it has them."""

    connected: str

    def _communicator(self, purpose: str, group: Any, backend: str | None) -> Any:
        made = super()._communicator(purpose, group, backend)
        if dist.get_rank() == 1:
            time.sleep(0.2)
            Path(self.connected, purpose).touch()
        return made


def connects(rank: int, n: int, folder: str) -> list[str]:
    SlowToConnect.connected = folder
    with SlowToConnect(Lattice(n, 4)):
        return sorted(path.name for path in Path(folder).iterdir())


def test_nobody_has_a_group_before_all_ranks_are_connected(tmp_path: Path) -> None:
    """Whoever closes it at once would otherwise fail a rank that still connects."""
    for found in ranks.run(2, connects, str(tmp_path)):
        assert found == ["adding", "joining"]


class Gathered(Exchange):
    """Lets nobody gather the first sum before the second round's shard is there."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator)
        self.shards, self.second = 0, threading.Event()

    def add_shard(self, *args: Any) -> Any:
        shard = super().add_shard(*args)
        self.shards += 1
        if self.shards == 2:
            self.second.set()
        return shard

    def _gather(self, *args: Any) -> Any:
        assert self.second.wait(60)
        return super()._gather(*args)


def gathered_late(rank: int, n: int, codec: Codec) -> list[Floats]:
    with rounds_over(codec) as rounds:
        group: Any = rounds.aggregator
        group._exchange = Gathered(group._adding)
        return averages(rounds, [gradient(rank, 9000 + number, number) for number in range(4)])


@pytest.mark.parametrize("codec", [Lattice(2, 4), Lattice(2, 4, down_bits="exact"), Sparse(2)], ids=str)
def test_a_sum_is_gathered_while_the_next_payloads_are_added(codec: Codec) -> None:
    """Their messages travel between the same ranks at the same time, and are not mixed up."""
    for means in ranks.run(2, gathered_late, codec):
        for number, mean in enumerate(means):
            xs: list[Any] = [gradient(rank, 9000 + number, number) for rank in range(2)]
            np.testing.assert_array_equal(mean, average(codec, xs, round_id=number))


def abandoned(rank: int, n: int) -> list[str]:
    """One rank leaves after two rounds; all that the other has submitted comes to an end, and so does closing."""
    group = Group(Lattice(n, 4), algorithm="sharded")
    rounds = RoundsInFlight(group)

    def submit(number: int) -> Any:
        return rounds.submit(Round(group, torch.ones(5000), group.codec, round_id=number))

    for future in [submit(0), submit(1)]:
        future.result()
    if rank:
        return []
    later = [submit(number) for number in range(2, 9)]
    rounds.end(None)
    errors = [future.exception(timeout=0) for future in later]
    assert all(isinstance(error, RoundError) for error in errors)
    raise RuntimeError(repr([str(error) for error in errors]))


def test_after_a_failure_every_round_ends_and_close_returns() -> None:
    outcomes = ranks.outcomes_of(2, abandoned, group=10)
    assert outcomes[0][1].count("another rank has died or hangs") == 7


def spoiled(rank: int, n: int) -> None:
    """An error of one rank's own, in encoding: the others' round fails, with what to do about it."""
    group = Group(Lattice(n, 4), algorithm="sharded")
    codec: Any = group.codec
    if rank == 1:

        class Broken(Lattice):
            def encode(self, *args: Any, **options: Any) -> Any:
                raise MemoryError("no room")

        codec = Broken(n, 4)
    started = time.monotonic()
    try:
        group.average(gradient(rank, 5000), codec=codec)
    except MemoryError as error:
        assert rank == 1
        said = str(error)
    except RoundError as error:
        said = str(error)
    group.close()
    raise RuntimeError(f"after {time.monotonic() - started:.0f} s: {said}")


def test_an_error_of_one_rank_ends_the_round_of_all() -> None:
    outcomes = ranks.outcomes_of(3, spoiled, group=10)
    assert "no room" in outcomes[1][1]
    for rank in (0, 2):
        assert "restart from the last checkpoint" in outcomes[rank][1]


def closed(rank: int, n: int) -> list[str]:
    said = []
    for end in (Group.close, lambda group: dist.destroy_process_group()):
        group = Group(Lattice(n, 4), algorithm="sharded")
        group.average(np.ones(100, np.float32))
        dist.barrier()
        end(group)
        for codec in (Lattice(n, 4), Sparse(n)):
            with pytest.raises(RoundError) as raised:
                group.average(np.ones(100, np.float32), codec=codec)
            said.append(str(raised.value))
        with pytest.raises(RoundError):
            group.check_settings({})
        group.close()
        group.close()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # which `ranks` expects to find
    return said


def test_what_is_closed_says_so() -> None:
    for said in ranks.run(2, closed):
        assert all(text.startswith("closed") for text in said[:2])
        assert all(text.startswith("destroyed") for text in said[2:])


LONG = (1_050_001, 132_000)
"""Sizes whose exact terms do not fit into the first message: of few ranks, and of many."""


def terms_of(n: int, terms: Any) -> Lattice:
    return Lattice(n, 4, block=64, rotate=False, terms=terms)


def of_different_sizes(rank: int, n: int, terms: str) -> tuple[list[str], list[Floats]]:
    """What each average says whose tensors differ at the last rank, and means of rounds that must not be harmed."""
    last, said, means, codec, sum_only = rank == n - 1, [], [], terms_of(n, terms), register_sum_only()

    def refused(group: Group, x: Floats, **options: Any) -> None:
        with pytest.raises(MismatchError) as raised:
            group.average(x, **options)
        said.append(str(raised.value))

    for few in (communicator.FEW_RANKS, 1):  # the second as if 2 were many, whose terms gloo's own all-reduce joins
        communicator.FEW_RANKS = few
        with (
            Group(codec, algorithm="sharded") as sharded,
            Group(codec, algorithm="packed") as packed,
            Group(codec, backend=sum_only) as summed,
        ):
            for group in (sharded, packed, summed):
                # Some that all have seen before, in another order; and terms too long for the first message.
                for mine, others in ((5000, 7000), (7000, 5000), (0, 9), (9, 0), (LONG[0], 5000), (600, 601)):
                    refused(group, np.zeros(mine if last else others, np.float32))
                    assert f"it is {others} at rank 0 and {mine} at rank {n - 1}" in said[-1]
                    means.append(group.average(gradient(rank, 5000), round_id=7))
            for lossless in (Sparse(n), Sketch(n)):
                refused(packed, np.ones(300 if last else 3000, np.float32), codec=lossless)
            refused(sharded, np.ones(600, np.float32), codec=Lattice(n, 4, block=64 if last else 512))
            refused(sharded, np.ones(600, np.float32), round_id=10 + last)
            means += [sharded.average(gradient(rank, size), round_id=7) for size in LONG]
    return said, means


@pytest.mark.parametrize("terms", ["exact", "byte"])
def test_tensors_of_different_sizes_are_a_mismatch_at_every_rank(terms: str) -> None:
    """Where gloo would end the process."""
    results, codec = ranks.run(2, of_different_sizes, terms), terms_of(2, terms)
    right = {size: average(codec, [gradient(0, size), gradient(1, size)], round_id=7) for size in (5000, *LONG)}
    for said, means in results:
        for *sizes, block, number in (said[:22], said[22:]):
            assert len(sizes) == 20
            assert all("size differs" in each for each in sizes)
            assert "codec family differs" in block
            assert "round differs; it is 10 at rank 0 and 11 at rank 1" in number
        for mean in means:
            np.testing.assert_array_equal(mean, right[len(mean)])
