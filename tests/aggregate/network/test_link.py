"""Averages by packets over real sockets: exact whatever is lost, doubled or out of order."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import ConfigError, Lattice, RoundError, Rows, Sketch, Sparse
from sumwire.aggregate.network import gather
from sumwire.aggregate.network.aggregator import PacketAggregator
from sumwire.aggregate.network.greeting import PacketAddress
from sumwire.aggregate.network.link import PacketLink
from sumwire.aggregate.protocol.packet import PacketHeader
from sumwire.aggregate.round import Round
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.aggregate.switch.records import Counter
from sumwire.codec.adaptive import Adaptive
from sumwire.codec.rows.rows import RowSlices
from tests.aggregate.network.netting import SECRET, aggregating, each, linked, restart
from tests.aggregate.server.serving import tensors

BAD = {"loss": 0.03, "doubled": 0.05, "late": 0.03}
"""Each way."""


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("workers", [2, 4])
def test_sums_are_exact_on_a_bad_path(workers: int, mtu: int) -> None:
    with aggregating(workers, mtu=mtu, window=32) as aggregator, linked(aggregator, workers, path=BAD) as links:
        lattices = Lattice(workers, 4), Lattice(workers, 8, widths="fixed")
        for r, codec in enumerate([*lattices, Sketch(workers), Sparse(workers)]):
            xs = tensors(workers, r, 60_000, 1.0 if isinstance(codec, Lattice) else 0.02)
            right = sumwire.average(links[0].prepare(codec), xs, round_id=r)
            for mean in each(links, lambda link: link.average(xs[link.rank], codec=codec, round_id=r)):  # noqa: B023
                np.testing.assert_array_equal(mean, right)
        repeated = sum(link.counts["merges_again"] for link in links)
        assert repeated, "nothing was lost: the test tests nothing"
        assert aggregator.counters(aggregator.jobs[0])[:, 1].sum()  # duplicates


def test_nan_is_seen_by_all() -> None:
    workers = 3
    with aggregating(workers) as aggregator, linked(aggregator, workers) as links:
        xs = tensors(workers, 0, 3000)
        xs[1][5], xs[2][7] = np.nan, np.inf
        for mean in each(links, lambda link: link.average(xs[link.rank], codec=Lattice(workers))):
            np.testing.assert_array_equal(mean, sumwire.average(Sparse(workers), xs))
        doubles = [x.astype(np.float64) for x in tensors(workers, 1, 500)]
        for mean in each(links, lambda link: link.average_exactly(doubles[link.rank], round_id=9)):
            np.testing.assert_allclose(mean, np.mean(doubles, 0), atol=1e-6)


def test_codecs_without_a_form_for_packets_are_exchanged_whole() -> None:
    workers = 3
    rows = [RowSlices((50, 4), np.array([k, 30]), np.full((2, 4), k / 3, np.float32)) for k in range(workers)]
    xs = tensors(workers, 3, 5000, 0.01)
    auto = Adaptive(Lattice(workers), Sparse(workers))
    with aggregating(workers) as aggregator, linked(aggregator, workers) as links:
        for got in each(links, lambda link: link.average(rows[link.rank], codec=Rows(workers), round_id=1)):
            np.testing.assert_array_equal(got.values, sumwire.average(Rows(workers), rows).values)
        for mean in each(links, lambda link: link.average(xs[link.rank], codec=auto, round_id=2)):
            np.testing.assert_array_equal(mean, sumwire.average(auto, xs, round_id=2))
        xs[2][3] = 1e30  # an escape: a sketch's integers do not hold it beside the others
        for mean in each(links, lambda link: link.average(xs[link.rank], codec=Sketch(workers), round_id=3)):
            np.testing.assert_array_equal(mean, sumwire.average(Sketch(workers), xs, round_id=3))


def test_what_is_too_large_to_be_exchanged_whole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "LIMIT", 1000)
    with aggregating(2) as aggregator, linked(aggregator, 2) as links:

        def refused(link: PacketLink) -> None:
            with pytest.raises(ConfigError, match="payloads of a Sparse cannot be added by packets.*use a Lattice"):
                link.average(np.ones(1000, np.float32), codec=Sparse(2))

        each(links, refused)


def test_rounds_in_flight_overlap() -> None:
    workers, rounds = 3, 12
    with aggregating(workers, mtu=9000) as aggregator, linked(aggregator, workers) as links:
        codec = links[0].prepare(Lattice(workers, 4))

        def work(link: PacketLink) -> list[Any]:
            stages = RoundsInFlight(link, lent=True)
            xs = [tensors(workers, r, 20_000)[link.rank] for r in range(rounds)]
            futures = [stages.submit(Round(link, x, codec, round_id=r)) for r, x in enumerate(xs)]
            means = [future.result() for future in futures]
            stages.close()
            return means

        for r, means in enumerate(zip(*each(links, work), strict=True)):
            right = sumwire.average(codec, tensors(workers, r, 20_000), round_id=r)
            assert all(np.array_equal(mean, right) for mean in means)


def test_an_adaptive_rate_is_kept() -> None:
    with aggregating(1, mtu=9000) as aggregator, linked(aggregator, 1, rate=80e6) as [link]:
        link.average(np.ones(1000, np.float32), codec=Lattice(1, 8, widths="fixed"))
        began = time.monotonic()
        link.average(np.ones(1 << 21, np.float32), codec=Lattice(1, 8, widths="fixed"))
        assert time.monotonic() - began > 0.18  # 2 MB at 10 MB/s take 0.2 s


# What goes wrong, and what is said


def test_nobody_there() -> None:
    link = PacketLink("udp://127.0.0.1:9", rank=0, workers=2, token=SECRET, timeout=0.2)
    with pytest.raises(RoundError, match="no aggregator answers at udp://127.0.0.1:9/0 for 0.2 s"):
        link.open()


def test_a_missing_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 61.0])  # the time of the answer to HELLO, and a minute later
    monkeypatch.setattr("sumwire.aggregate.network.transport.monotonic", lambda: next(clock))
    with aggregating(2) as aggregator:
        link = PacketLink(aggregator.address, rank=0, workers=2, token=SECRET, timeout=60)
        with pytest.raises(RoundError, match=r"workers \[1\] did not say HELLO within 60 s"):
            link.open()


def test_a_wrong_secret_gets_no_answer() -> None:
    with aggregating(2) as aggregator:
        link = PacketLink(aggregator.address, rank=0, workers=2, token="not the secret", timeout=0.2)
        with pytest.raises(RoundError, match="Strangers get no answer"):
            link.open()
        while not aggregator.refusals()["wrong_key"]:
            time.sleep(0.01)


def test_a_wrong_number_of_workers_is_named() -> None:
    with aggregating(2) as aggregator:
        link = PacketLink(aggregator.address, rank=0, workers=3, token=SECRET)
        with pytest.raises(ConfigError, match="job has 2 workers, this worker was given workers=3"):
            link.open()


def test_workers_that_average_different_things_find_out() -> None:
    with aggregating(2) as aggregator, linked(aggregator, 2) as links:

        def work(link: PacketLink) -> str:
            with pytest.raises(RoundError) as found:
                link.average(np.ones(1000 + link.rank, np.float32), codec=Lattice(2))
            links[1 - link.rank].close()  # which would wait for this one
            return str(found.value)

        assert any("others sent something else" in said for said in each(links, work))


def test_a_worker_that_does_not_come_is_named() -> None:
    with aggregating(2) as aggregator, linked(aggregator, 2, timeout=3.0) as links:
        with pytest.raises(RoundError, match=r"workers \[1\] sent nothing of chunk 0"):
            links[0].average(np.ones(1000, np.float32))
        with pytest.raises(RoundError, match=r"workers \[1\] sent nothing"):  # and the link is of no use any more
            links[0].average(np.ones(1000, np.float32))


def test_a_restarted_worker_begins_a_session_and_the_others_are_told() -> None:
    with aggregating(2) as aggregator, linked(aggregator, 2) as links:
        restart(aggregator, 1)
        with pytest.raises(RoundError, match="a worker was restarted, so start all of them again"):
            links[0].average(np.ones(1000, np.float32))


def test_a_worker_whose_packets_are_not_taken_is_told_why() -> None:
    with aggregating(2) as former, linked(former, 2) as links:
        former.close()
        with (
            PacketAggregator(former.jobs, port=former.port),
            pytest.raises(RoundError, match=r"does not take this worker's packets: .*restarted: start all"),
        ):
            links[0].average(np.ones(1000, np.float32))


def test_a_worker_whose_welcome_comes_after_the_others_have_begun() -> None:
    xs = tensors(2, 0, 5000)
    with aggregating(2) as aggregator:
        answer, job = aggregator.control.answer, aggregator.jobs[0]

        def late_for_worker_1(datagram: bytes, *sender: Any) -> bytes | None:
            reply, begun = answer(datagram, *sender), aggregator.counters(job)[0, Counter.MERGED]
            return None if PacketHeader.unpack(datagram).worker == 1 and not begun else reply

        aggregator.control.answer = late_for_worker_1  # type: ignore[method-assign]
        with linked(aggregator, 2, opened=False) as links:
            for mean in each(links, lambda link: link.average(xs[link.rank], codec=Lattice(2), round_id=3)):
                np.testing.assert_array_equal(mean, sumwire.average(links[0].prepare(Lattice(2)), xs, round_id=3))


def test_closing_ends_what_waits() -> None:
    with aggregating(2) as aggregator, linked(aggregator, 2) as links:
        timer = threading.Timer(0.2, links[0].close)
        timer.start()
        with pytest.raises(RoundError, match="closed"):
            links[0].average(np.ones(1000, np.float32))
        timer.join()


@pytest.mark.parametrize("address", ["udp://", "udp://a:b", "udp://127.0.0.1:0", "udp://127.0.0.1/64", "udp://h:1/"])
def test_bad_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not udp://host:port/job"):
        PacketAddress.of(address)


def test_connect_knows_packets_by_their_address() -> None:
    link = sumwire.connect("udp://127.0.0.1:4660/3", rank=1, workers=4, token=SECRET)
    assert isinstance(link, PacketLink)
    with pytest.raises(ConfigError, match="loss='some'"):
        sumwire.connect("udp://127.0.0.1", rank=1, workers=4, loss="some")
