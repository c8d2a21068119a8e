"""Peers over real ranks: the means of the simulation, to the bit, at every rank."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire.aggregate.group.duplicate import duplicate
from sumwire.errors import ConfigError, MismatchError
from sumwire.lab.peers import PEERS
from sumwire.lab.peers.base import Peer, Vector
from sumwire.lab.peers.block_float import E2M1, BlockFloatQuantizer
from sumwire.lab.peers.casts import CastQuantizer
from sumwire.lab.peers.exchange import QuantizedPeer
from sumwire.lab.peers.feedback import EFSign
from sumwire.lab.peers.ternary import TernGrad
from sumwire.lab.wired.owner import OwnerExchange
from sumwire.lab.wired.registry import WIRED, build
from sumwire.lab.wired.wire import Wire
from tests.lab.peers import exact, gradients
from tests.ranks import run

SIZE, ROUNDS, RANKS = 5000, 3, 3
SIZES = (SIZE, 1, 40)
RANDOM = ("terngrad", "qsgd-4", "qsgd-4-owner", "mxfp4-stochastic", "mxfp6-stochastic", "dynamiq-5", "dynamiq-any-5")

Found = dict[str, tuple[list[Vector], int]]
"""Means and bytes by name."""


def half(peer: Peer, size: int) -> Vector:
    return np.full(size, 0.5, np.float32)


def rounds(rank: int, ranks: int, names: list[str], size: int, fixed: bool) -> Found:
    """Means of some rounds by name, and the bytes that this rank sent."""
    if fixed:
        Peer.uniform = half  # type: ignore[method-assign]
    found = {}
    for name in names:
        wire = Wire(duplicate(None, 1, None)[0])
        exchange = build(name, [size], wire, seed=7)
        means = [exchange.average(gradients(ranks, size, k)[rank]) for k in range(ROUNDS)]
        found[name] = means, wire.sent
        wire.close()
    return found


def simulated(name: str, size: int) -> Peer:
    """With what docstrings say is different on wires."""
    if name == "terngrad":
        return TernGrad(RANKS, size, layers=[size], seed=7)
    if name == "ef-sign-double":
        return EFSign(RANKS, size, double_way=True, block=max(1, -(-size // RANKS)), seed=7)
    return PEERS[name](RANKS, size, seed=7)


@pytest.fixture(scope="module")
def same() -> dict[int, list[Found]]:
    """By size: all schemes with the same numbers for random ones; also with fewer blocks than ranks."""
    return {size: run(RANKS, rounds, list(WIRED), size, True) for size in SIZES}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", WIRED)
def test_means_are_those_of_the_simulation_to_the_bit_at_every_rank(
    name: str, size: int, same: dict[int, list[Found]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Peer, "uniform", half)
    peer = simulated(name, size)
    for k in range(ROUNDS):
        tensors = gradients(RANKS, size, k)
        mean = peer.average(tensors).mean
        for ranks_own in same[size]:
            assert ranks_own[name][0][k].tobytes() == mean.tobytes(), (name, k)


@pytest.mark.parametrize("name", WIRED)
def test_bytes_sent_are_those_that_the_simulation_counts(name: str, same: dict[int, list[Found]]) -> None:
    bits = simulated(name, SIZE).average(gradients(RANKS, SIZE)).bits
    sent = 8 * np.mean([ranks_own[name][1] for ranks_own in same[SIZE]]) / ROUNDS / SIZE
    assert sent == pytest.approx(bits * (RANKS - 1) / RANKS, rel=0.02, abs=0.03)


@pytest.fixture(scope="module")
def drawn() -> list[Found]:
    return run(RANKS, rounds, list(RANDOM), SIZE, False)


@pytest.mark.parametrize("name", RANDOM)
def test_errors_are_those_of_the_simulation_where_each_rank_draws_its_own_numbers(
    name: str, drawn: list[Found]
) -> None:
    assert len({ranks_own[name][0][0].tobytes() for ranks_own in drawn}) == 1
    peer = simulated(name, SIZE)
    there, here = [], []
    for k in range(ROUNDS):
        tensors = gradients(RANKS, SIZE, k)
        there.append(relative(drawn[0][name][0][k], tensors))
        here.append(relative(peer.average(tensors).mean, tensors))
    assert np.mean(there) == pytest.approx(np.mean(here), rel=0.1)


def relative(mean: Vector, tensors: list[Vector]) -> float:
    target: NDArray[np.float64] = exact(tensors)
    return float(np.square(mean - target).sum() / np.square(target).sum())


def poisoned(rank: int, ranks: int, names: list[str], bad: float, where: int) -> dict[str, list[bool]]:
    """Whether all values of a mean are NaN: with one bad value at one rank, and in a round before that."""
    found = {}
    for name in names:
        wire = Wire(duplicate(None, 1, None)[0])
        exchange = build(name, [SIZE], wire)
        x = gradients(ranks, SIZE)[rank]
        before = exchange.average(x)
        if rank == where:
            x[17] = bad
        found[name] = [bool(np.isnan(before).any()), bool(np.isnan(exchange.average(x)).all())]
        wire.close()
    return found


@pytest.mark.parametrize(("bad", "where"), [(np.nan, 0), (np.inf, 2)])
def test_a_value_that_is_not_finite_makes_the_whole_mean_nan_at_every_rank(bad: float, where: int) -> None:
    for ranks_own in run(RANKS, poisoned, list(WIRED), bad, where):
        assert ranks_own == {name: [False, True] for name in WIRED}


class Halves(QuantizedPeer):
    """float16 up, which overflows; MXFP4 down, which makes a plausible number of infinity."""

    name = paper = "halves"

    def __init__(self, workers: int, size: int) -> None:
        super().__init__(workers, size, up=CastQuantizer("fp16"), down=BlockFloatQuantizer(E2M1, 32))


def overflowing(rank: int, ranks: int) -> list[bool]:
    """A mean that float16 cannot hold, on the way down and up, and residuals that float32 cannot."""
    found = []
    for name, value in (("fp16", 1e5), ("halves", 1e5), ("topk-10%", 3e38), ("mxfp4", 1e30)):
        wire = Wire(duplicate(None, 1, None)[0])
        exchange = OwnerExchange(Halves(ranks, 100), wire) if name == "halves" else build(name, [100], wire)
        means = [exchange.average(np.full(100, value, np.float32)) for _ in range(3)]
        found.append(bool(np.isnan(means[-1]).all()))
        wire.close()
    return found


def test_overflows_are_nan_too() -> None:
    assert run(2, overflowing) == [[True, True, True, False]] * 2


def refused(rank: int, ranks: int) -> None:
    wire = Wire(duplicate(None, 1, None)[0])
    with pytest.raises(ConfigError, match="peer 'powersgd-1' does not run over a process group: choose from fp32"):
        build("powersgd-1", [10], wire)
    with pytest.raises(MismatchError, match=r"shape \(9,\), not \(10,\)"):
        build("qgz-4", [10], wire).average(np.zeros(9, np.float32))
    wire.close()


def test_mistakes_are_named() -> None:
    run(1, refused)
