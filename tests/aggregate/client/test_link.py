"""Links and services over real sockets: whatever happens to connections and servers, sums are right."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import AsyncLink, Lattice, Residual, RoundError, Sketch, Sparse
from sumwire.aggregate.protocol import HISTORY
from tests.aggregate.server.serving import RETRY, linked, serving, tensors

CODECS = [
    lambda n: Lattice(n),
    lambda n: Lattice(n, 6, block=64).with_bits(3),
    lambda n: Lattice(n, energy=0.5),
    lambda n: Sparse(n),
    lambda n: Sparse(n, shards=1),
    lambda n: Sparse(n, shards=20),
    lambda n: Sketch(n),
]


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_averages_have_the_bits_of_average(shards: int) -> None:
    async def main() -> None:
        async with serving(3, shards=shards) as site, linked(site, 3) as links:
            for r, make in enumerate(CODECS * 2):
                size = [5000, 0, 1, 777, 64, 70_000][r % 6]
                xs, codec = tensors(3, r, size, 0.1), make(3)
                want = sumwire.average(codec, xs, round_id=r)
                got = await asyncio.gather(*(link.average(x, codec=codec) for link, x in zip(links, xs, strict=True)))
                assert all(np.array_equal(mean, want) for mean in got), codec

    asyncio.run(main())


def test_large_tensors_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.codec.lattice.sharding.PART", 4096)

    async def main() -> None:
        async with serving(2, shards=2) as site, linked(site, 2) as links:
            xs = tensors(2, 0, 100_001)
            want = sumwire.average(Lattice(2), xs, round_id=0)
            got = await asyncio.gather(*(link.average(x) for link, x in zip(links, xs, strict=True)))
            assert all(np.array_equal(mean, want) for mean in got)

    asyncio.run(main())


def test_shape_and_dtype_come_back() -> None:
    async def main() -> None:
        async with serving(1) as site, linked(site, 1) as (link,):
            x = np.arange(12, dtype=np.float64).reshape(3, 4)
            mean = await link.average(x, codec=Lattice(1, 8))
            assert (mean.shape, mean.dtype) == ((3, 4), np.float64)

    asyncio.run(main())


async def _all_at_once(links: list[AsyncLink], rounds: range, size: int, seed: int) -> None:
    """Every worker has all rounds in flight at once, in an order of its own."""
    codec = Lattice(len(links), block=64)

    async def one(link: AsyncLink, rank: int, r: int) -> None:
        mean = await link.average(tensors(len(links), r, size)[rank], codec=codec, round_id=r)
        assert np.array_equal(mean, sumwire.average(codec, tensors(len(links), r, size), round_id=r))

    rng = random.Random(seed)
    jobs = [one(link, rank, r) for rank, link in enumerate(links) for r in rounds]
    rng.shuffle(jobs)
    await asyncio.gather(*jobs)


def test_rounds_overlap() -> None:
    async def main() -> None:
        async with serving(3, shards=2) as site, linked(site, 3) as links:
            await _all_at_once(links, range(HISTORY), 300, seed=0)
            for rank in range(3):  # in order, but far more than may be in flight
                links[rank]._session.numbers.upcoming = HISTORY
            codec = Lattice(3, block=64)
            xs = {r: tensors(3, r, 200) for r in range(HISTORY, HISTORY + 30)}
            got = await asyncio.gather(
                *(link.average(xs[r][k], codec=codec) for r in xs for k, link in enumerate(links))
            )
            for i, r in enumerate(xs):
                want = sumwire.average(codec, xs[r], round_id=r)
                assert all(np.array_equal(mean, want) for mean in got[3 * i : 3 * i + 3])

    asyncio.run(main())


def test_a_round_that_waits_is_not_left_behind_by_one_that_came_after_it() -> None:
    async def main() -> None:
        async with serving(2) as site, linked(site, 2) as (link, _):
            rounds, codec = link._session, Sparse(2)
            in_flight = [await rounds.open(codec, (5,), r) for r in range(HISTORY)]
            after = asyncio.create_task(rounds.open(codec, (5,), 2 * HISTORY))  # which wakes up first
            before = asyncio.create_task(rounds.open(codec, (5,), HISTORY))
            await asyncio.sleep(0)
            for pending in in_flight:
                rounds.close(pending)
            rounds.close(await before)
            assert rounds.get(2 * HISTORY) is None
            rounds.close(await after)

    asyncio.run(main())


@pytest.mark.parametrize("shards", [1, 2])
def test_cut_connections_cost_nothing_but_time(shards: int) -> None:
    async def main() -> None:
        rng = random.Random(shards)
        async with serving(3, shards=shards) as site, linked(site, 3) as links:

            async def cutter() -> None:
                while True:
                    await asyncio.sleep(0.05 * rng.random())
                    rng.choice(rng.choice(links)._session.shards).cut()

            cutting = asyncio.create_task(cutter())
            for r in range(10):
                codec = CODECS[r % 5](3)
                xs = tensors(3, r, 2000, 0.1)
                means = [link.average(x, codec=codec) for link, x in zip(links, xs, strict=True)]
                got = await asyncio.gather(*means)
                assert all(np.array_equal(m, sumwire.average(codec, xs, round_id=r)) for m in got)
            cutting.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("shards", [1, 2])
def test_rounds_complete_when_the_server_is_restarted(shards: int) -> None:
    async def main() -> None:
        async with serving(3, shards=shards) as site, linked(site, 3) as links:

            async def work(rank: int) -> None:
                for r in range(25):
                    codec = [Lattice(3, block=64), Sparse(3)][r % 2]
                    mean = await links[rank].average(tensors(3, r, 1500, 0.2)[rank], codec=codec, round_id=r)
                    assert np.array_equal(mean, sumwire.average(codec, tensors(3, r, 1500, 0.2), round_id=r))
                    if rank == r % 3:
                        await asyncio.sleep(0.02)

            async def restarter() -> None:
                for _ in range(3):
                    await asyncio.sleep(0.1)
                    await site.stop()
                    await asyncio.sleep(0.02)
                    await site.start()

            await asyncio.gather(restarter(), *(work(rank) for rank in range(3)))

    asyncio.run(main())


def test_results_are_returned_to_a_server_that_lost_them() -> None:
    async def main() -> None:
        async with serving(2, timeout=5) as site, linked(site, 2) as (fast, slow):
            codec, xs = Lattice(2, block=64), tensors(2, 0, 500)
            unheard: list[Any] = []
            slow._session.got = lambda *frame: unheard.append(frame)  # type: ignore[method-assign]  # of any result ...
            waiting = asyncio.create_task(slow.average(xs[1], codec=codec))
            terms = codec.propose(xs[0]) | codec.propose(xs[1])
            first = asyncio.create_task(fast.average(xs[0], codec=codec))
            while not unheard:
                await asyncio.sleep(0.01)
            del slow._session.got  # type: ignore[method-assign]
            slow._session._pending[0].agree(terms)
            await asyncio.wait([first], timeout=60)
            await site.stop()  # ... until the server that had it is gone
            await site.start()
            want = sumwire.average(codec, xs, round_id=0)
            assert np.array_equal(await waiting, want)
            assert np.array_equal(await first, want)

    asyncio.run(main())


def test_a_timeout_names_round_and_workers() -> None:
    async def main() -> None:
        async with serving(3, timeout=0.3) as site, linked(site, 3) as links:
            with pytest.raises(RoundError, match=r"round 0 failed: workers 1, 2 sent nothing for 0\.3 s"):
                await links[0].average(np.ones(9, np.float32))
            late = links[1].average(np.ones(9, np.float32))
            with pytest.raises(RoundError, match="round 0 failed: workers 1, 2"):
                await late
            # They go on together.
            assert links[0].upcoming == links[1].upcoming == 1

    asyncio.run(main())


def test_a_restarted_worker_begins_where_the_slowest_shard_is() -> None:
    async def main() -> None:
        async with serving(2, shards=2) as site, linked(site, 2) as (link, doomed):
            codec, xs = Lattice(2, block=64), tensors(2, 0, 1000)
            first = asyncio.create_task(link.average(xs[0], codec=codec))
            # Its payload reaches one shard, then its process dies.
            doomed._session.shards[1].send = lambda _: 0  # type: ignore[method-assign]
            second = asyncio.create_task(doomed.average(xs[1], codec=codec))
            while not site.aggregator.finished:
                await asyncio.sleep(0.01)
            second.cancel()
            doomed._session.abstain = lambda *_: None  # type: ignore[method-assign]
            await doomed.close()
            async with linked(site, 2, ranks=[1]) as (again,):
                assert again.upcoming == 0
                want = sumwire.average(codec, xs)
                assert np.array_equal(await again.average(xs[1], codec=codec), want)
                assert np.array_equal(await first, want)

    asyncio.run(main())


def test_a_restarted_worker_says_which_rounds_it_has_no_part_in() -> None:
    async def main() -> None:
        async with serving(2, timeout=30) as site, linked(site, 2) as (link, other):
            other._session.numbers.first = other._session.numbers.upcoming = 1
            with pytest.raises(RoundError, match="round 0 .*worker 1 takes no part: it was restarted"):
                await asyncio.wait_for(link.average(np.ones(9, np.float32)), 60)

    asyncio.run(main())


def test_join_and_add() -> None:
    async def main() -> None:
        async with serving(2, shards=2) as site, linked(site, 2) as links:
            codec, xs = Lattice(2, block=64), [x.reshape(50, 20) for x in tensors(2, 0, 1000)]
            terms = await asyncio.gather(
                *(link.join(codec.propose(x), round_id=0) for link, x in zip(links, xs, strict=True))
            )
            payloads = [codec.encode(x, terms[0], rank=k, round_id=0) for k, x in enumerate(xs)]
            sums = await asyncio.gather(*(link.add(p) for link, p in zip(links, payloads, strict=True)))
            assert np.array_equal(codec.decode(sums[0]), codec.decode(codec.add(payloads).narrow()))
            assert terms[0].shape == (50, 20)
            again = [codec.encode(x, terms[0], rank=k, round_id=1) for k, x in enumerate(xs)]
            sums = await asyncio.gather(*(link.add(p) for link, p in zip(links, again, strict=True)))
            for link in links:  # whose terms came from elsewhere: an answer with them must change nothing
                assert link.upcoming == 2
            assert np.array_equal(codec.decode(sums[1]), codec.decode(codec.add(again).narrow()))
            assert sums[0].late == ()

    asyncio.run(main())


def test_no_server_is_an_error_that_says_so() -> None:
    async def main() -> None:
        async with serving(1) as site:
            address = site.address
        with pytest.raises(RoundError, match=rf"no server at {address} for 0\.2 s .*is it running"):
            await AsyncLink(address, rank=0, workers=1, timeout=0.2, retry=RETRY).__aenter__()

    asyncio.run(main())


def test_a_server_that_says_nothing_is_none() -> None:
    async def main() -> None:
        writers: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(RoundError, match="no server at .*it does not answer"):
            await AsyncLink(f"127.0.0.1:{port}", rank=0, workers=1, timeout=0.3, retry=0.05).__aenter__()
        silent.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"token": "guess"}, "the token is wrong"),
        ({"workers": 5}, "the worker was given workers=5, the server --workers 2: give both the same"),
        ({"token": "secret", "job": "\n"}, "printable"),
    ],
)
def test_who_is_refused_is_told_why(options: dict[str, Any], reason: str) -> None:
    async def main() -> None:
        async with serving(2, token="secret") as site:
            link = AsyncLink(site.address, **({"rank": 0, "workers": 2, "token": "secret"} | options), retry=RETRY)
            with pytest.raises(RoundError, match=f"the server refuses worker 0: .*{reason}"):
                await link.__aenter__()

    asyncio.run(main())


def test_a_server_that_vanishes_without_a_word_is_found_out() -> None:
    async def main() -> None:
        async with serving(2) as site, linked(site, 2, retry=0.03) as links:
            xs, codec = tensors(2, 0, 200), Sparse(2)
            # As if packets went nowhere from here on: the server neither reads nor closes.
            for connection in site.shards[0].connections:
                connection.transport.pause_reading()
            means = [link.average(x, codec=codec) for link, x in zip(links, xs, strict=True)]
            got = await asyncio.wait_for(asyncio.gather(*means), 60)
            assert np.array_equal(got[0], sumwire.average(codec, xs))

    asyncio.run(main())


def test_closing_ends_rounds_in_flight() -> None:
    async def main() -> None:
        async with serving(2) as site:
            link = await AsyncLink(site.address, rank=0, workers=2).__aenter__()
            waiting = asyncio.create_task(link.average(np.ones(5, np.float32)))
            await asyncio.sleep(0.1)
            await link.close()
            with pytest.raises(RoundError, match="the link is closed"):
                await waiting
            with pytest.raises(RoundError, match="the link is closed"):
                await link.average(np.ones(5, np.float32))

    asyncio.run(main())


def test_threads_share_a_link_and_none_is_left_waiting() -> None:
    with sumwire.Server(workers=2) as server:
        errors: list[BaseException] = []

        def wait(link: sumwire.Link) -> None:
            try:
                link.average(np.ones(5, np.float32))
            except RoundError as error:
                errors.append(error)

        with sumwire.connect(server.address, rank=0, workers=2) as link:
            threads = [threading.Thread(target=wait, args=(link,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            with sumwire.connect(server.address, rank=1, workers=2) as other:
                other.average(np.ones(5, np.float32))  # one of them gets its result
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert len(errors) == 2
        with pytest.raises(RoundError, match="the link is closed"):
            link.average(np.ones(5, np.float32))
        with pytest.raises(RoundError, match="the link is closed"):
            link.report(nmse=0.1)
        with pytest.raises(sumwire.ConfigError, match="nmse=nan is not a finite number"):
            link.report(nmse=float("nan"))


def test_a_cancelled_round_does_not_keep_others_waiting() -> None:
    async def main() -> None:
        async with serving(2) as site, linked(site, 2) as (one, other):
            task = asyncio.create_task(one.average(np.ones(5, np.float32)))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(RoundError, match="worker 0 takes no part: CancelledError"):
                await other.average(np.ones(5, np.float32))

    asyncio.run(main())


def test_a_residual_of_another_codec_is_refused() -> None:
    async def main() -> None:
        async with serving(1) as site, linked(site, 1) as (link,):
            with pytest.raises(sumwire.MismatchError, match="codec family differs"):
                await link.average(np.ones(5, np.float32), codec=Lattice(1, 2), residual=Residual(Lattice(1, 5)))

    asyncio.run(main())


def test_rounds_that_users_number_survive_a_reconnection() -> None:
    """They may be far below where the server would begin: an idle link claims no place that it was not at."""

    async def main() -> None:
        codec = Sparse(2)
        async with serving(2, start=1 << 30) as site, linked(site, 2) as links:
            for r in range(6):
                xs = tensors(2, r, 100)
                got = await asyncio.gather(
                    *(link.average(x, codec=codec, round_id=r) for link, x in zip(links, xs, strict=True))
                )
                assert np.array_equal(got[0], (xs[0] + xs[1]) / 2)
                for link in links:
                    before = link._session.shards[0]._stream
                    link._session.shards[0].cut()
                    while (
                        link._session.shards[0]._stream in (before, None)
                        or not link._session.shards[0]._greeted.is_set()
                    ):
                        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_workers_with_and_without_a_residual_cannot_meet() -> None:
    """They would divide one sum by different numbers, and leave the round with different means."""

    async def main() -> None:
        x, keeping = np.ones(5, np.float32), Lattice(1, feedback=True)
        async with serving(1) as site, linked(site, 1) as (link,):
            with pytest.raises(sumwire.ConfigError, match="build it with feedback=True, or omit the residual"):
                await link.average(x, residual=Residual(Lattice(1)))
            with pytest.raises(sumwire.ConfigError, match="build it with feedback=False, or pass a residual"):
                await link.average(x, codec=keeping)
            assert link.upcoming == 0
            assert len(await link.average(x, residual=Residual(keeping))) == 5

    asyncio.run(main())


def test_a_link_that_is_closed_while_a_worker_computes_ends_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    computing, closed, propose = threading.Event(), threading.Event(), Lattice.propose

    def slow(self: Lattice, x: Any) -> Any:
        computing.set()
        assert closed.wait(60)
        return propose(self, x)

    async def main() -> None:
        async with serving(2) as site, linked(site, 2) as links:
            monkeypatch.setattr(Lattice, "propose", slow)
            averaging = asyncio.create_task(links[0].average(np.ones(100, np.float32)))
            await asyncio.to_thread(computing.wait, 60)
            await links[0].close()
            closed.set()
            with pytest.raises(RoundError, match="the link is closed"):
                await asyncio.wait_for(averaging, 60)

    asyncio.run(main())
