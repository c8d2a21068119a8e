"""Sketches that get stuck: their second exchange over the server, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import AsyncLink, Lattice, RoundError, Sketch
from sumwire.aggregate.protocol import HISTORY
from sumwire.codec.algebra import FOLLOW_UP
from tests.aggregate.server.serving import linked, serving, tensors

SIZE = 4000


def stuck(workers: int) -> Sketch:
    """A codec whose tables are too small for any peel to end."""
    return Sketch(workers, rows_per_nonzero=0.2)


def values(workers: int, r: int) -> list[Any]:
    """Sparse tensors, with some values that are no lattice integers."""
    xs = tensors(workers, r, SIZE, 0.05)
    xs[0][5], xs[-1][6] = 1e-30, np.nan
    return xs


def mean_of(codec: Sketch, xs: list[Any], r: int) -> Any:
    """The mean, computed apart; of the first ranks, if there are no more tensors."""
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms |= codec.propose(x)
    total = codec.add([codec.encode(x, terms, rank=k, round_id=r) for k, x in enumerate(xs)])
    assert len(codec.peel(total).leftovers), "nothing is stuck: the test tests nothing"
    return codec.complete(codec.peel(total), np.stack([codec.pick(x, codec.peel(total).leftovers) for x in xs]))


def same_bits(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("workers", [1, 3])
def test_means_have_the_bits_of_average(workers: int, shards: int) -> None:
    async def main() -> None:
        codec = stuck(workers)
        async with serving(workers, shards=shards) as site, linked(site, workers) as links:
            for r in range(3):
                xs = values(workers, r)
                got = await asyncio.gather(*(link.average(x, codec=codec) for link, x in zip(links, xs, strict=True)))
                want = mean_of(codec, xs, r)
                assert same_bits(want, sumwire.average(codec, xs, round_id=r))
                assert all(same_bits(mean, want) for mean in got)
                assert all(link.upcoming == r + 1 for link in links)

    asyncio.run(main())


def test_workers_that_are_at_different_rounds_meet() -> None:
    """Every worker has several rounds in flight, stuck and others, in an order of its own."""

    async def main() -> None:
        codecs = [stuck(3), Lattice(3, block=64), Sketch(3)]
        async with serving(3, shards=2) as site, linked(site, 3) as links:

            async def one(link: AsyncLink, rank: int, r: int) -> None:
                await asyncio.sleep(0.1 * random.Random(r * 3 + rank).random())
                xs, codec = tensors(3, r, SIZE, 0.05), codecs[r % 3]
                mean = await link.average(xs[rank], codec=codec, round_id=r)
                assert np.array_equal(mean, sumwire.average(codec, xs, round_id=r))

            for start in (0, HISTORY, 2 * HISTORY):
                jobs = [one(link, k, r) for k, link in enumerate(links) for r in range(start, start + HISTORY)]
                random.Random(start).shuffle(jobs)
                await asyncio.gather(*jobs)

    asyncio.run(main())


def test_cut_connections_and_restarts_cost_nothing_but_time() -> None:
    async def main() -> None:
        codec, rng = stuck(3), random.Random(5)
        async with serving(3, shards=2) as site, linked(site, 3) as links:

            async def trouble() -> None:
                while True:
                    await asyncio.sleep(0.05 * rng.random())
                    rng.choice(rng.choice(links)._session.shards).cut()
                    if rng.random() < 0.1:
                        await site.stop()
                        await site.start()

            async def work(rank: int) -> None:
                for r in range(20):
                    xs = values(3, r)
                    mean = await links[rank].average(xs[rank], codec=codec, round_id=r)
                    assert same_bits(mean, mean_of(codec, xs, r))

            troubling = asyncio.create_task(trouble())
            await asyncio.gather(*(work(rank) for rank in range(3)))
            troubling.cancel()

    asyncio.run(main())


def test_a_latecomer_has_no_say_and_gets_the_same_mean() -> None:
    async def main() -> None:
        codec, xs = stuck(3), values(3, 0)
        async with serving(3, shards=2, quorum=2) as site, linked(site, 3) as links:
            first = [asyncio.create_task(link.average(x, codec=codec)) for link, x in zip(links, xs[:2], strict=False)]
            while not site.aggregator.finished:
                await asyncio.sleep(0)
            late = links[2].average(xs[2], codec=codec)
            got = await asyncio.gather(*first, late)
            assert all(same_bits(mean, mean_of(codec, xs[:2], 0)) for mean in got)
            # One that comes when all is over gets it, too.
            more = await asyncio.gather(
                *(link.average(x, codec=codec) for link, x in zip(links[1:], xs[1:], strict=True))
            )
            assert same_bits(await links[0].average(xs[0], codec=codec), more[0])

    asyncio.run(main())


def test_a_deadline_ends_a_second_exchange_and_another_set_of_workers_is_an_error() -> None:
    async def main() -> None:
        codec, xs = stuck(3), values(3, 0)
        async with serving(3, deadline=1.0) as site, linked(site, 3) as links:
            got = await asyncio.gather(*(link.average(x, codec=codec) for link, x in zip(links[:2], xs, strict=False)))
            assert same_bits(got[0], got[1])
            # Now one of three dies between the exchanges.
            links[2]._session.numbers.upcoming = 1
            opened = links[2]._session.open

            async def die(codec: Any, shape: Any, round_id: int, *rest: Any) -> Any:
                if round_id & FOLLOW_UP:
                    await asyncio.sleep(600)
                return await opened(codec, shape, round_id, *rest)

            links[2]._session.open = die  # type: ignore[method-assign]
            tasks = [asyncio.create_task(link.average(x, codec=codec)) for link, x in zip(links, xs, strict=True)]
            for task in tasks[:2]:
                with pytest.raises(RoundError, match="round 1 is a sum of ranks 0, 1, 2, .*second exchange of 0, 1:"):
                    await task
            tasks[2].cancel()

    asyncio.run(main())


def test_a_worker_that_stays_away_is_named() -> None:
    async def main() -> None:
        codec, xs = stuck(2), values(2, 0)
        async with serving(2, timeout=2.0) as site, linked(site, 2) as links:

            async def die(*_: Any) -> None:
                await asyncio.sleep(600)

            opened = links[1]._session.open
            doomed = asyncio.create_task(links[1].average(xs[1], codec=codec))
            while links[1]._session.get(0) is None:
                await asyncio.sleep(0)
            links[1]._session.open = die  # type: ignore[method-assign,assignment]
            with pytest.raises(RoundError, match=r"the second exchange of round 0 failed: workers 1 sent nothing"):
                await links[0].average(xs[0], codec=codec)
            doomed.cancel()
            # They go on together.
            links[1]._session.open = opened  # type: ignore[method-assign]
            got = await asyncio.gather(*(link.average(x, codec=codec) for link, x in zip(links, xs, strict=True)))
            assert same_bits(got[0], mean_of(codec, xs, 1))

    asyncio.run(main())


def test_ids_of_second_exchanges_are_not_for_users() -> None:
    async def main() -> None:
        async with serving(1) as site, linked(site, 1) as (link,):
            with pytest.raises(sumwire.ConfigError, match=r"round_id=9223372036854775808 is not in 0\.\.2\*\*63-1"):
                await link.average(np.ones(3, np.float32), round_id=FOLLOW_UP)

    asyncio.run(main())


def test_who_is_cancelled_before_its_second_exchange_does_not_keep_others_waiting() -> None:
    async def main() -> None:
        codec, xs = stuck(2), values(2, 0)
        async with serving(2, timeout=30.0) as site, linked(site, 2) as links:
            doomed = asyncio.create_task(links[1].average(xs[1], codec=codec))
            rounds = links[1]._session

            async def cancel() -> None:
                while (pending := rounds.get(0)) is None or not pending.done.done():
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                doomed.cancel()

            cancelling = asyncio.create_task(cancel())
            with pytest.raises(RoundError, match="worker 1 takes no part: its round has ended"):
                await asyncio.wait_for(links[0].average(xs[0], codec=codec), 60)
            await cancelling

    asyncio.run(main())
