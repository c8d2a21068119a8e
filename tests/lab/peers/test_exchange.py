"""Rings that quantize at every hop, nodes within nodes, low rank, and a server that recompresses."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import Lattice
from sumwire.lab.peers import PEERS
from sumwire.lab.peers.base import Parts, Vector
from sumwire.lab.peers.casts import AllReduce, CastQuantizer
from sumwire.lab.peers.hops import ring, shards
from sumwire.lab.peers.integers import SDP4Bit
from sumwire.lab.peers.low_rank import PowerSGD
from sumwire.lab.peers.quantizer import Draw
from tests.lab.peers import exact, gradients, nmse


@given(size=st.integers(0, 5000), block=st.integers(1, 600), count=st.integers(1, 9))
def test_shards_are_whole_blocks_and_cover_all(size: int, block: int, count: int) -> None:
    found = shards(size, block, count)
    assert len(found) == count
    assert [found[0].start, found[-1].stop] == [0, size]
    for before, after in pairwise(found):
        assert before.stop == after.start
        assert after.start % block == 0 or after.start == size


class Counting(CastQuantizer):
    """Counts how many values were encoded."""

    def __init__(self) -> None:
        super().__init__("fp32")
        self.values = 0

    def encode(self, x: Vector, draw: Draw) -> Parts:
        self.values += x.size
        return super().encode(x, draw)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_ring_encodes_every_value_once_per_worker(workers: int) -> None:
    counting, tensors = Counting(), gradients(workers, 103)
    mean, up, down = ring(tensors, 1, lambda shard: counting, lambda rank, shard: lambda n: np.zeros(n, np.float32))
    assert counting.values == workers * 103
    np.testing.assert_allclose(mean, exact(tensors), atol=1e-6)
    assert up == pytest.approx(32 * 103)
    assert down == 32 * 103


@pytest.mark.parametrize("name", ["bf16", "mxfp4", "mxfp6"])
def test_errors_of_a_ring_grow_with_hops_and_those_at_an_owner_do_not(name: str) -> None:
    few, many = gradients(2, 4000, related=1.0), gradients(16, 4000, related=1.0)
    at_owner = [nmse(PEERS[name](len(x), 4000), x) for x in (few, many)]
    on_ring = [nmse(PEERS[f"{name}-ring"](len(x), 4000), x) for x in (few, many)]
    assert on_ring[1] > 1.5 * on_ring[0]
    assert on_ring[1] > 1.5 * at_owner[1]
    assert at_owner[1] < 1.2 * at_owner[0]


def test_a_ring_of_float32_is_an_all_reduce() -> None:
    tensors = gradients(6, 500)
    outcome = AllReduce(6, 500, exchange="ring").average(tensors)
    np.testing.assert_allclose(outcome.mean, exact(tensors), atol=1e-6)
    assert outcome.bits == pytest.approx(64)


def test_eight_bits_within_nodes_cost_little_accuracy() -> None:
    tensors = gradients(8, 4096)
    flat, nodes = nmse(SDP4Bit(8, 4096), tensors), nmse(SDP4Bit(8, 4096, per_node=4), tensors)
    assert nodes < 1.5 * flat


# Low rank


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_mean_of_low_rank_is_found_exactly(rank: int) -> None:
    """A single step is exact for a matrix of this rank, whatever Q started from."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((30, rank)) @ rng.standard_normal((rank, 40))
    tensors = [(matrix * k).astype(np.float32).reshape(-1) for k in (1, 3)]
    peer = PowerSGD(2, 1200, rank=rank, shape=(30, 40))
    outcome = peer.average(tensors)
    np.testing.assert_allclose(outcome.mean, exact(tensors), atol=1e-4)
    assert outcome.up_bits == outcome.down_bits == pytest.approx(32 * rank * 70 / 1200)


def test_a_warm_start_finds_the_largest_direction() -> None:
    """Power iteration over rounds nears the best approximation of rank 1, which one step from a random Q misses."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((40, 40)))[0] for _ in range(2))
    matrix = (left * 0.8 ** np.arange(40)) @ right
    peer = PowerSGD(1, 1600, rank=1)
    x = matrix.astype(np.float32).reshape(-1)

    def error() -> float:
        peer.residuals[:] = 0
        return float(np.linalg.norm(peer.average([x]).mean - x))

    first, *_, last = [error() for _ in range(12)]
    best = float(np.sqrt(np.square(0.8 ** np.arange(1, 40)).sum()))
    assert first > 1.01 * best
    assert last == pytest.approx(best, rel=0.003)


def test_a_tensor_too_small_for_factors_travels_as_it_is() -> None:
    tensors = gradients(2, 12)
    peer = PowerSGD(2, 12, rank=4)
    assert peer.average(tensors).bits == 64
    np.testing.assert_allclose(peer.average(tensors).mean, exact(tensors), rtol=1e-6)


def test_rounds_of_zeros_do_not_freeze_the_start() -> None:
    peer = PowerSGD(1, 400, rank=1)
    peer.average([np.zeros(400, np.float32)])
    (x,) = gradients(1, 400)
    assert np.linalg.norm(peer.average([x]).mean) > 0


# A server that recompresses


def test_recompressing_at_a_server_costs_accuracy_that_adding_does_not() -> None:
    """At the same bits up, the sum of lanes is exact; a payload of the mean has the error of one worker."""
    tensors = gradients(8, 8192)
    codec = Lattice(8, 4, down_bits="exact")
    terms = reduce(or_, map(codec.propose, tensors))
    total = codec.add([codec.encode(x, terms, rank=rank) for rank, x in enumerate(tensors)])
    added = np.square(codec.decode(total) - exact(tensors)).sum() / np.square(exact(tensors)).sum()
    assert nmse(PEERS["recompressed-4"](8, 8192), tensors) > 2 * added
