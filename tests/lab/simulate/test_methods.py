"""Averages of simulated workers: the bits of the real codec, and what a residual takes back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sumwire
from sumwire import Lattice
from sumwire.errors import ConfigError
from sumwire.lab.peers import PEERS
from sumwire.lab.simulate import ByCodec, ByPeer, Conditions, OverNetwork

Floats = NDArray[np.float32]
SIZE = 10_003  # its last blocks are small, and cannot be parted


def vectors(workers: int, seed: int = 0) -> list[Floats]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(SIZE, np.float32) for _ in range(workers)]


@pytest.mark.parametrize("options", [{"bits": 4}, {"total_bits": 8}, {"bits": 2, "down_bits": "exact"}])
def test_a_codec_gives_the_bits_of_average(options: dict[str, Any]) -> None:
    codec, xs = Lattice(3, **options), vectors(3)
    method = ByCodec(codec)
    for round_id in (1, 2):
        assert method.average(xs).means[0].tobytes() == sumwire.average(codec, xs, round_id=round_id).tobytes()
    up, down, terms = codec.expected_bits(SIZE)
    exchange = method.average(xs)
    assert exchange.up_bits == pytest.approx((up + terms) / SIZE, rel=0.01)
    assert exchange.down_bits == pytest.approx((down + terms) / SIZE, rel=0.05)


def test_a_network_without_trouble_gives_the_bits_of_average() -> None:
    codec, xs = Lattice(3, 4), vectors(3)
    (mean,) = OverNetwork(codec, Conditions(), seed=0).average(xs).means
    assert mean.tobytes() == sumwire.average(codec.for_network(), xs, round_id=1).tobytes()


def test_a_peer_keeps_its_state() -> None:
    xs, method, peer = vectors(2), ByPeer(PEERS["topk-10%"](2, SIZE)), PEERS["topk-10%"](2, SIZE)
    for _ in range(2):
        assert np.array_equal(method.average(xs).means[0], peer.average(xs).mean)


class AllReceived(OverNetwork):
    """Loses blocks on the way up only, so that means show what was added."""

    def _received(self, mean: Floats, sizes: Any) -> Floats:
        return mean


@pytest.mark.parametrize("conditions", [Conditions(loss=0.2), Conditions(late=2, quorum=2)])
def test_with_feedback_nothing_that_was_lost_or_late_is_missing_in_the_end(conditions: Conditions) -> None:
    method = AllReceived(Lattice(4, 4, feedback=True), conditions, seed=1)
    given, means = np.zeros(SIZE), np.zeros(SIZE)
    for step in range(6):
        xs = vectors(4, seed=step)
        given += np.sum(xs, axis=0, dtype=np.float64)
        means += 4.0 * method.average(xs).means[0]
    assert method.residuals is not None
    kept = np.sum([memory.value for memory in method.residuals], axis=0)
    assert np.abs(kept).max() > 0.1
    assert np.allclose(means + kept, given, atol=1e-3)
    assert method.residual_norm() > 0


def test_without_feedback_blocks_are_divided_by_what_arrived() -> None:
    method = AllReceived(Lattice(4, 4), Conditions(loss=0.5), seed=1)
    xs: Sequence[Floats] = [np.ones(SIZE, np.float32)] * 4
    mean = method.average(xs).means[0]
    arrived = mean != 0
    assert 0.85 < arrived.mean() < 1
    # Divided by all workers, values would be as low as 1/4.
    assert abs(np.median(mean[arrived]) - 1) < 0.1
    assert np.mean(mean[arrived]) == pytest.approx(1, abs=0.1)


def test_results_are_lost_at_each_worker_apart() -> None:
    method = OverNetwork(Lattice(4, 4), Conditions(loss=0.3), seed=2)
    assert method.own_means
    means = method.average(vectors(4)).means
    assert len(means) == 4
    missing = [mean == 0 for mean in means]
    assert all(0.1 < lost.mean() < 0.6 for lost in missing)
    here = ~missing[0] & ~missing[1]
    assert np.array_equal(means[0][here], means[1][here])
    assert not np.array_equal(missing[0], missing[1])


@pytest.mark.parametrize(
    ("late", "quorum", "absent", "slow"),
    [(0, 7, 0, False), (2, 0, 0, True), (2, 10, 0, True), (2, 9, 1, True), (2, 8, 2, False), (3, 7, 3, False)],
)
def test_a_round_waits_for_its_quorum(late: int, quorum: int, absent: int, slow: bool) -> None:
    conditions = Conditions(late=late, quorum=quorum)
    assert conditions.absent(10) == absent
    method = OverNetwork(Lattice(10, 4), conditions, seed=0)
    for _ in range(3):
        assert len(method._present(10)) == 10 - absent
    assert (method.seconds > 3 * 1.5) is slow


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (partial(Conditions, loss=1.5), "loss=1.5"),
        (partial(Conditions, late=-1), "late=-1"),
        (lambda: Conditions(late=5).absent(4), "late=5 and quorum=0 must not be above workers=4"),
    ],
)
def test_impossible_conditions_are_named(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
