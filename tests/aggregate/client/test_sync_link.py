"""`Link`, which needs no asyncio: an aggregator like any other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import InputError, Lattice, Residual, RoundError, Sketch, Sparse
from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.protocol import HISTORY
from sumwire.aggregate.round import Round
from tests.aggregate.server.serving import RETRY, tensors

WORKERS = 2


@pytest.fixture
def links() -> Iterator[list[sumwire.Link]]:
    with sumwire.Server(WORKERS, shards=2, timeout=20, first_round=0) as server:
        made = [sumwire.connect(server.address, rank=k, workers=WORKERS, retry=RETRY) for k in range(WORKERS)]
        yield made
        for link in made:
            link.close()


def both(links: list[sumwire.Link], work: Any) -> list[Any]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return [each.result() for each in [pool.submit(work, link) for link in links]]


@pytest.mark.parametrize("codec", [Lattice(2), Sparse(2), Sketch(2), Sketch(2, rows_per_nonzero=0.2)], ids=str)
def test_averages_have_the_bits_of_average(links: list[sumwire.Link], codec: sumwire.Codec) -> None:
    assert all(isinstance(link, Aggregator) for link in links)
    for r in range(2 * HISTORY):  # so that no round stays open
        xs = tensors(2, r, 3000, 0.1)
        got = both(links, lambda link, xs=xs: link.average(xs[link.rank], codec=codec))
        assert all(np.array_equal(mean, sumwire.average(codec, xs, round_id=r)) for mean in got)
    assert [link.upcoming for link in links] == 2 * [2 * HISTORY]


def test_out_dtype_and_what_cannot_be_encoded(links: list[sumwire.Link]) -> None:
    xs = [np.arange(6.0).reshape(2, 3), np.ones((2, 3))]
    xs[1][1, 2] = np.inf
    outs = [np.empty((2, 3)) for _ in links]
    got = both(links, lambda link: link.average(xs[link.rank], out=outs[link.rank]))
    for mean, out in zip(got, outs, strict=True):
        assert mean is out
        assert np.array_equal(out, (xs[0] + xs[1]) / 2)


@pytest.mark.parametrize("codec", [Sparse(2), Sketch(2)], ids=str)
def test_float64_is_averaged_exactly(links: list[sumwire.Link], codec: sumwire.Codec) -> None:
    xs = [np.array([1 + 2.0**-40, 0, np.nan]), np.array([1 + 2.0**-39, 2, 3])]
    for mean in both(links, lambda link: link.average(xs[link.rank], codec=codec)):
        assert np.array_equal(mean, (xs[0] + xs[1]) / 2, equal_nan=True)
    assert [link.upcoming for link in links] == [1, 1]


def test_a_tensor_that_is_none_does_not_keep_others_waiting(links: list[sumwire.Link]) -> None:
    def work(link: sumwire.Link) -> None:
        assert link.upcoming == 0
        link.average(np.ones(5, np.float32) if link.rank else np.ones(5, np.int32), round_id=0)

    with ThreadPoolExecutor(WORKERS) as pool:
        bad, good = [pool.submit(work, link) for link in links]
        with pytest.raises(InputError, match="int32 cannot be encoded"):
            bad.result()
        with pytest.raises(RoundError, match="round 0 failed: worker 0 takes no part: InputError"):
            good.result()


def test_what_a_round_costs_is_counted(links: list[sumwire.Link]) -> None:
    codec, xs = Lattice(2), tensors(2, 0, 3000)

    def work(link: sumwire.Link) -> Workspace:
        workspace = Workspace()
        Round(link, xs[link.rank], codec, round_id=None, workspace=workspace).run()
        return workspace

    for workspace in both(links, work):
        statistics = workspace.statistics
        assert statistics.values == 3000
        assert all(statistics.seconds[kind] > 0 for kind in ("encode", "exchange", "decode"))


@pytest.mark.parametrize("codec", [Lattice(2), Sparse(2), Sketch(2)], ids=str)
def test_terms_and_payloads_count_as_sent_as_they_travel(codec: sumwire.Codec) -> None:
    with sumwire.Server(WORKERS, shards=2, timeout=20) as server:
        # It asks for nothing meanwhile: only what the round needs is on the wire.
        links = [sumwire.connect(server.address, rank=k, workers=WORKERS, retry=60) for k in range(WORKERS)]

        def work(link: sumwire.Link) -> tuple[int, int]:
            link.average(tensors(2, 0, 3000, 0.1)[link.rank], codec=codec)  # shards get to know the codec
            workspace, before = Workspace(), bytes_out(link)
            Round(link, tensors(2, 1, 3000, 0.1)[link.rank], codec, round_id=None, workspace=workspace).run()
            return workspace.statistics.sent, bytes_out(link) - before

        for sent, traveled in both(links, work):
            assert sent == traveled > 0
        for link in links:
            link.close()


def bytes_out(link: sumwire.Link) -> int:
    """Bytes that a link's connections have sent, and what is queued there."""
    streams = [shard._stream for shard in link._link._session.shards]
    return sum(stream.bytes_out + stream.queued for stream in streams if stream is not None)


def test_a_workspace_may_be_used_again_at_once() -> None:
    """Also by a worker that is late, whose payload may still be queued when the sum is there."""
    codec, rounds, size = Lattice(2, feedback=True), 12, 400_000
    together, memories = threading.Barrier(WORKERS), [Residual(codec) for _ in range(WORKERS)]
    with (
        sumwire.Server(WORKERS, quorum=1, timeout=20, first_round=0) as server,
        sumwire.connect(server.address, rank=0, workers=2, retry=RETRY) as one,
        sumwire.connect(server.address, rank=1, workers=2, retry=RETRY) as two,
    ):

        def work(link: sumwire.Link) -> Any:
            workspace, means = Workspace(), np.zeros(size)
            for r in range(rounds):
                together.wait()
                x = tensors(2, r, size)[link.rank]
                means += Round(link, x, codec, round_id=r, residual=memories[link.rank], workspace=workspace).run()
            return means

        means = both([one, two], work)
    assert np.array_equal(*means)
    went_in = sum(np.sum(tensors(2, r, size), axis=0, dtype=np.float64) for r in range(rounds))
    kept = np.sum([memory.value for memory in memories], axis=0, dtype=np.float64)
    assert np.allclose(WORKERS * means[0] + kept, went_in, atol=1e-3)


def test_a_link_is_opened_once(links: list[sumwire.Link]) -> None:
    with links[0] as link:
        assert link is links[0]
        with link:
            assert link.next_round() == 0
            link.end_round(0)
        with pytest.raises(RoundError, match="the link is closed"):
            link.next_round()
    links[1].close()  # which was never opened
    with pytest.raises(RoundError, match="the link is closed"):
        links[1].average(np.ones(3, np.float32))
    links[1].end_round(0)
