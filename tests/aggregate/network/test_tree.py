"""Racks whose packets are added below a server: two levels and eight workers, over real sockets."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import Codec, ConfigError, Lattice, RoundError, Rows, Server, Sketch, Sparse
from sumwire.aggregate.network.rack import RackLink
from sumwire.aggregate.round import Round
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.codec.rows.rows import RowSlices
from tests.aggregate.client.test_late import Recorder
from tests.aggregate.network.netting import RACK, each, rack, tree
from tests.aggregate.server.serving import tensors

WORKERS, SIZE = 2 * RACK, 20_000

CODECS: dict[str, Codec] = {
    "lattice": Lattice(WORKERS, 4, block=256),
    "eight bits": Lattice(WORKERS, 8, widths="fixed"),
    "sparse": Sparse(WORKERS),
    "sketch": Sketch(WORKERS),
    "stuck sketch": Sketch(WORKERS, rows_per_nonzero=0.3),
}


@pytest.fixture(scope="module")
def root() -> Iterator[Server]:
    with Server(WORKERS) as server:
        yield server


def mean_of(codec: Codec, xs: list[Any], ranks: Any, r: int) -> Any:
    terms = codec.propose(xs[ranks[0]])
    for rank in ranks[1:]:
        terms = terms | codec.propose(xs[rank])
    return codec.decode(codec.add([codec.encode(xs[rank], terms, rank=rank, round_id=r) for rank in ranks]))


def test_a_tree_gives_the_bits_of_one_process_on_bad_paths(root: Server) -> None:
    with tree(root.address, path={"loss": 0.02, "doubled": 0.03, "late": 0.02}) as links:
        for r, codec in enumerate(CODECS.values(), links[0].first_round):
            xs = tensors(WORKERS, r, SIZE, 1.0 if isinstance(codec, Lattice) else 0.02)
            right = sumwire.average(links[0].prepare(codec), xs, round_id=r)
            for mean in each(links, lambda link: link.average(xs[link.rank], codec=codec)):  # noqa: B023
                np.testing.assert_array_equal(mean, right)
        assert sum(link._down.counts["polls"] for link in links), "nothing was lost: the test tests nothing"


def test_what_packets_cannot_add_goes_through_a_tree(root: Server) -> None:
    with tree(root.address, name="odd") as links:
        xs = tensors(WORKERS, 0, 3000)
        xs[5][7] = np.nan
        for mean in each(links, lambda link: link.average(xs[link.rank])):
            np.testing.assert_array_equal(mean, sumwire.average(Sparse(WORKERS), xs))
        rows = [RowSlices((50, 4), np.array([k, 30]), np.full((2, 4), k / 3, np.float32)) for k in range(WORKERS)]
        for got in each(links, lambda link: link.average(rows[link.rank], codec=Rows(WORKERS))):
            np.testing.assert_array_equal(got.values, sumwire.average(Rows(WORKERS), rows).values)
        ys = tensors(WORKERS, 1, 600, 0.02)
        ys[2][3] = 1e30  # which a sketch's integers do not hold
        for mean in each(links, lambda link: link.average(ys[link.rank], codec=Sketch(WORKERS))):
            np.testing.assert_array_equal(mean, sumwire.average(Sketch(WORKERS), ys))
        zeros = np.zeros(3000, np.float32)
        for mean in each(links, lambda link: link.average(zeros)):
            np.testing.assert_array_equal(mean, zeros)
        sides = [link.side_channel("side") for link in links]
        for mean in each(sides, lambda side: side.average(np.full(9, side.rank, np.float32), codec=Sparse(WORKERS))):
            np.testing.assert_array_equal(mean, np.full(9, 3.5, np.float32))


def test_rounds_in_flight_overlap(root: Server) -> None:
    with tree(root.address, name="flight") as links:
        codec, first, rounds = links[0].prepare(Lattice(WORKERS, 4)), links[0].first_round, 12

        def work(link: RackLink) -> list[Any]:
            stages = RoundsInFlight(link, lent=True)
            xs = [tensors(WORKERS, r, SIZE)[link.rank] for r in range(rounds)]
            futures = [stages.submit(Round(link, x, codec, round_id=first + r)) for r, x in enumerate(xs)]
            means = [future.result() for future in futures]
            stages.close()
            return means

        for r, means in enumerate(zip(*each(links, work), strict=True)):
            right = sumwire.average(codec, tensors(WORKERS, r, SIZE), round_id=first + r)
            assert all(np.array_equal(mean, right) for mean in means)


def test_a_rack_goes_on_without_a_straggler_of_its_own(root: Server) -> None:
    """Its quorum holds in the rack; the server waits for both racks, and the sum is of six."""
    xs = tensors(WORKERS, 5, 3000)
    xs[3] *= 0.01  # the others' terms cover it
    xs[7] *= 100.0  # and not that
    early = threading.Barrier(WORKERS - 2)
    done = threading.Event()
    with tree(root.address, name="quorum", quorum=3) as links:
        codec = links[0].prepare(Lattice(WORKERS, 4, block=64, feedback=True))
        memories = {link.rank: Recorder(codec) for link in links}

        def work(link: RackLink) -> Any:
            straggles = link.rank in (3, 7)
            if straggles:
                done.wait(20)
            mean = link.average(xs[link.rank], residual=memories[link.rank])
            if not straggles and early.wait(20) == 0:
                done.set()
            return mean

        means = each(links, work)
    right = mean_of(codec, xs, [0, 1, 2, 4, 5, 6], links[0].first_round) * 6 / 8  # what is missing comes later
    for mean in means:
        np.testing.assert_allclose(mean, right, atol=1e-6)
    for rank in (3, 7):
        np.testing.assert_allclose(memories[rank].value, xs[rank], rtol=1e-4, atol=1e-6)


def test_the_server_goes_on_without_a_late_rack() -> None:
    """Its workers get the others' sum, whether or not they could have encoded under the others' terms."""
    with Server(WORKERS, quorum=RACK) as root, tree(root.address) as links:
        for scale in (0.1, 100.0):
            codec, r = links[0].prepare(Lattice(WORKERS, 4, block=64)), links[0].upcoming
            xs = tensors(WORKERS, r, 3000)
            xs[6] *= scale
            right = mean_of(codec, xs, range(RACK), r)
            for some in (links[:RACK], links[RACK:]):
                for mean in each(some, lambda link: link.average(xs[link.rank], codec=codec)):  # noqa: B023
                    np.testing.assert_array_equal(mean, right)


def _rack_until_killed(upstream: str, told: Any) -> None:
    with rack(upstream, RACK) as links:
        each(links, lambda link: link.average(np.ones(3000, np.float32), round_id=link.first_round))
        told.send(True)
        threading.Event().wait(60)


def test_the_server_goes_on_without_a_rack_that_was_killed() -> None:
    with Server(WORKERS, deadline=1.5) as root, rack(root.address, 0) as links, ExitStack() as stack:
        here, there = multiprocessing.get_context("spawn").Pipe()
        other = multiprocessing.get_context("spawn").Process(target=_rack_until_killed, args=(root.address, there))
        other.start()
        stack.callback(other.kill)
        each(links, lambda link: link.average(np.ones(3000, np.float32), round_id=link.first_round))
        assert here.poll(120)
        other.kill()
        other.join()
        codec, r, xs = links[0].prepare(Lattice(WORKERS, 4)), links[0].first_round + 1, tensors(WORKERS, 1, 3000)
        for mean in each(links, lambda link: link.average(xs[link.rank], codec=codec, round_id=r)):
            np.testing.assert_array_equal(mean, mean_of(codec, xs, range(RACK), r))


# What goes wrong, and what is said


def test_a_rack_without_a_server_is_told() -> None:
    with rack("127.0.0.1:9", 0, timeout=3.0) as links:

        def refused(link: RackLink) -> None:
            with pytest.raises(RoundError, match="the rack's first worker: no server at 127.0.0.1:9"):
                link.open()

        each(links, refused)


def test_an_error_of_the_server_reaches_every_worker(root: Server) -> None:
    with tree(root.address, name="different", timeout=5.0) as links:

        def work(link: RackLink) -> str:
            with pytest.raises(RoundError) as found:
                link.average(np.ones(1000 + link.rank // RACK, np.float32))
            return str(found.value)

        for said in each(links, work):
            assert "it sends a tensor of 100" in said
            assert "all workers must pass equal shapes" in said


def test_a_rack_that_cannot_contribute_says_why(root: Server) -> None:
    with tree(root.address, name="incomplete", timeout=5.0) as links:  # long enough to connect to the server

        def work(link: RackLink) -> str:
            with pytest.raises(RoundError) as found:
                link.average(np.ones(1000, np.float32))
            return str(found.value)

        said = each([link for link in links if link.rank != 3], work)
    assert all("workers [3] sent nothing of chunk 0" in text for text in said)
    assert all("the rack of workers 0..3 takes no part" in text for text in said[3:])


def test_only_the_first_worker_is_believed(root: Server) -> None:
    with tree(root.address, name="forged") as links:
        with pytest.raises(RoundError, match="came from another worker than the rack's first"):
            links[1]._broadcast.run(0, lambda: b"a total", "round 1")
        with pytest.raises(RoundError, match="came from another worker than the rack's first"):
            links[0]._broadcast.run(0, lambda: b"a total", "round 1")


@pytest.mark.parametrize(
    "options", [{"deadline": 1.0}, {"down": {"quorum": 2}}, {"down": {"deadline": 1.0}}], ids=["up", "quorum", "down"]
)
def test_jobs_that_cannot_carry_a_rack_are_refused(options: dict[str, Any]) -> None:
    with rack("127.0.0.1:9", 0, **options) as links:

        def refused(link: RackLink) -> None:
            with pytest.raises(ConfigError, match="configure two jobs, n and n \\+ 1, both without a deadline"):
                link.open()

        each(links, refused)


@pytest.mark.parametrize(("rank", "ranks"), [(5, (0, 3)), (5, (4, 8)), (5, (6, 4))])
def test_impossible_ranks_are_refused(rank: int, ranks: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="pass the first and the last rank of this worker's rack"):
        RackLink("udp://127.0.0.1", rank=rank, workers=WORKERS, ranks=ranks, upstream="127.0.0.1:9")
