"""Lossy delivery: what is missing at the deadline counts as not arrived, block by block; no round hangs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import ConfigError, Lattice, Residual, Sparse
from sumwire.aggregate.network.link import PacketLink
from tests.aggregate.network.netting import aggregating, each, linked
from tests.aggregate.server.serving import tensors

WORKERS, SIZE, DEADLINE = 4, 40_000, 0.5
LOSS = {"loss": 0.03, "doubled": 0.03}


def spans_lost(total: Any) -> int:
    return sum(hi - lo for lo, hi in total.late)


def check_blocks(codec: Lattice, xs: list[Any], totals: list[Any], round_id: int) -> None:
    """Each block is the sum of exactly those workers that do not call it late."""
    terms = totals[0].terms
    payloads = [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]
    late = [{block for lo, hi in total.late for block in range(lo, hi)} for total in totals]
    for block in range(len(xs[0]) // codec.block):
        there = [payload.part(block, block + 1) for rank, payload in enumerate(payloads) if block not in late[rank]]
        right = codec.add(there)
        for total in totals:
            if not total.counts[block] and there:
                continue  # its packet with the result came too late for this worker alone
            assert total.counts[block] == len(there)
            np.testing.assert_array_equal(total.part(block, block + 1).lanes, right.lanes)


def test_means_without_what_was_lost_are_those_of_the_workers_in_each_block() -> None:
    with (
        aggregating(WORKERS, deadline=DEADLINE) as aggregator,
        linked(aggregator, WORKERS, path={"loss": 0.1, "doubled": 0.03}, loss="lossy") as links,
    ):
        codec = links[0].prepare(Lattice(WORKERS, 4))
        x = tensors(1, 1, SIZE)[0]
        xs = [x, -x, x, x]  # whose terms are the same, so that whoever is late for these can encode nevertheless

        def work(link: PacketLink) -> Any:
            terms = link.join(codec.propose(xs[link.rank]), round_id=1)
            return link.add(codec.encode(xs[link.rank], terms, rank=link.rank, round_id=1))

        totals = each(links, work)
        assert any(spans_lost(total) for total in totals), "nothing was lost: the test tests nothing"
        check_blocks(codec, xs, totals, 1)
        # Decoded by its own count, each block is as good as its workers' mean.
        mean, truth = codec.decode(totals[0], missing="zero"), np.mean(xs, 0)
        whole = np.repeat(totals[0].counts == WORKERS, codec.block)[:SIZE]
        assert np.sum((mean - truth)[whole] ** 2) <= 0.15 * np.sum(truth[whole] ** 2)


def test_what_was_lost_stays_in_the_residuals() -> None:
    """The residual's law, to float32's precision, however much was lost and whoever was late."""
    rounds, size = 8, 12_000
    # Nobody begins a round before all have the last one's mean, so that a slow machine makes workers late, not expired.
    together = threading.Barrier(WORKERS, timeout=60)
    with (
        aggregating(WORKERS, deadline=0.1) as aggregator,
        linked(aggregator, WORKERS, path={"loss": 0.1, "doubled": 0.05}, loss="lossy") as links,
    ):
        codec = links[0].prepare(Lattice(WORKERS, 4, feedback=True))
        xs = tensors(WORKERS, 2, size)

        def work(link: PacketLink) -> tuple[Any, Any, int]:
            residual, lost, means = Residual(codec), 0, np.zeros(size)
            for r in range(rounds):
                together.wait()
                means += link.average(xs[link.rank], residual=residual, round_id=r)
                lost += link.late_units
            return means, residual.value, lost

        results = each(links, work)
    assert sum(lost for _, _, lost in results), "nothing was lost: the test tests nothing"
    sent = rounds * np.sum(xs, 0, dtype=np.float64)
    kept = np.sum([residual for _, residual, _ in results], 0, dtype=np.float64)
    for means, _, _ in results:
        np.testing.assert_allclose(WORKERS * means + kept, sent, atol=1e-4 * np.abs(sent).max())


def test_a_worker_that_does_not_come_is_not_waited_for() -> None:
    with aggregating(3, deadline=0.1) as aggregator, linked(aggregator, 3, loss="lossy") as links:
        xs = tensors(3, 4, 5000)
        means = each(links[:2], lambda link: link.average(xs[link.rank], codec=Lattice(3, 8), round_id=4))
        np.testing.assert_array_equal(*means)
        # Of both, or of one where the other came after the deadline.
        apart = [np.abs(means[0] - right) for right in (xs[0], xs[1], (xs[0] + xs[1]) / 2)]
        assert np.min(apart, axis=0).max() < 0.1
        # It comes later: what it sends is in no sum, and it gets the others'.
        late = links[2].average(xs[2] * 0.01, codec=Lattice(3, 8), round_id=4)
        np.testing.assert_array_equal(late, means[0])


def test_a_quorum_of_each_block_is_in_its_sum_and_everybody_gets_it() -> None:
    """Nothing is lost, but packets overtake each other, so that different workers are late for different chunks."""
    x, rounds = tensors(1, 6, SIZE)[0], 4
    xs = [x, -x, x]  # whose terms are the same, so that nobody is left out who is late for these
    with aggregating(3, quorum=2) as aggregator, linked(aggregator, 3, path={"late": 0.1}) as links:
        codec = links[0].prepare(Lattice(3, 4))

        def work(link: PacketLink) -> list[Any]:
            totals = []
            for r in range(rounds):
                terms = link.join(codec.propose(xs[link.rank]), round_id=r)
                totals.append(link.add(codec.encode(xs[link.rank], terms, rank=link.rank, round_id=r)))
            return totals

        results = each(links, work)
    for r, totals in enumerate(zip(*results, strict=True)):
        check_blocks(codec, xs, list(totals), r)
        assert min(total.counts.min() for total in totals) >= 2


@pytest.mark.parametrize("run", range(3))
def test_different_workers_late_for_different_packets_of_terms_do_not_end_a_round(run: int) -> None:
    """Terms of several packets: with a quorum for each, workers could be left with terms that cover none of them."""
    xs = tensors(3, run, 200_000)
    with aggregating(3, quorum=2) as aggregator, linked(aggregator, 3, path={"late": 0.1}) as links:
        means = each(links, lambda link: link.average(xs[link.rank], codec=Lattice(3, 4), round_id=run))
    np.testing.assert_array_equal(means[0], means[1])
    np.testing.assert_array_equal(means[0], means[2])


def test_a_latecomer_that_terms_do_not_cover_gets_the_sum_and_keeps_its_tensor() -> None:
    with aggregating(2, deadline=0.1) as aggregator, linked(aggregator, 2, loss="lossy") as links:
        codec = links[0].prepare(Lattice(2, 4, feedback=True))
        x, memories = np.ones(2000, np.float32), [Residual(codec), Residual(codec)]
        first = links[0].average(x, residual=memories[0], round_id=7)
        second = links[1].average(1000 * x, residual=memories[1], round_id=7)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(memories[1].value, 1000 * x)


def test_lossless_codecs_are_sent_again_nevertheless() -> None:
    with (
        aggregating(WORKERS, deadline=60.0) as aggregator,
        linked(aggregator, WORKERS, path=LOSS, loss="lossy") as links,
    ):
        xs = tensors(WORKERS, 5, 20_000, 0.02)
        for mean in each(links, lambda link: link.average(xs[link.rank], codec=Sparse(WORKERS), round_id=5)):
            np.testing.assert_array_equal(mean, sumwire.average(Sparse(WORKERS), xs))


def test_lossy_needs_a_deadline() -> None:
    with (
        aggregating(1) as aggregator,
        pytest.raises(ConfigError, match='loss="lossy" needs an aggregator that ends chunks'),
        linked(aggregator, 1, loss="lossy"),
    ):
        pass


def test_blocks_fit_packets_where_some_may_be_lost() -> None:
    with aggregating(2, deadline=1.0) as aggregator, linked(aggregator, 2, loss="lossy") as links:
        assert links[0].prepare(Lattice(2, 4, block=4096)).block == 512  # whose lanes may have 16 bits
        assert links[0].prepare(Lattice.thc(2)).block == 1024


def test_a_residual_must_be_of_what_travels() -> None:
    with aggregating(1) as aggregator, linked(aggregator, 1) as [link]:
        codec = Lattice(1, 3, feedback=True)
        with pytest.raises(ConfigError, match="build both with link.prepare"):
            link.average(np.ones(100, np.float32), residual=Residual(codec))
