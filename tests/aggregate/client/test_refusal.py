"""Tensors that some worker cannot encode: all average them exactly, so NaN and Inf show everywhere."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import Lattice, Residual, Sparse
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.wire import control
from sumwire.wire.frame import Frame, describe, to_bytes
from tests.aggregate.server.serving import Peer, linked, serving, tensors


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("quorum", "shards"), [(None, 2), (3, 1)])
def test_what_cannot_be_encoded_shows_at_all_workers(bad: float, quorum: int | None, shards: int) -> None:
    async def main() -> None:
        async with serving(3, shards=shards, quorum=quorum, timeout=30) as site, linked(site, 3) as links:
            for r, dtype in enumerate((np.float32, np.float64)):
                xs = [x.astype(dtype).reshape(50, 100) for x in tensors(3, r, 5000)]
                xs[1][0, 7] = bad
                got = await asyncio.gather(*(link.average(x) for link, x in zip(links, xs, strict=True)))
                want = sumwire.average(Lattice(3), xs)
                assert [mean.tobytes() for mean in got] == 3 * [want.tobytes()]
                assert (got[0].dtype, got[0].shape) == (dtype, (50, 100))
                assert np.array_equal(got[0][0, 7], bad, equal_nan=True)
                assert np.isfinite(np.delete(got[0], 7)).all()
            assert all(link.upcoming == 2 for link in links)
            assert site.aggregator.open_rounds == site.aggregator.failed == 0
            ys = tensors(3, 2, 5000)
            more = await asyncio.gather(*(link.average(x) for link, x in zip(links, ys, strict=True)))
            assert np.array_equal(more[0], sumwire.average(Lattice(3), ys, round_id=2))

    asyncio.run(main())


def test_who_cannot_encode_and_comes_late_gets_the_others_mean() -> None:
    async def main() -> None:
        async with serving(3, quorum=2) as site, linked(site, 3) as links:
            xs = tensors(3, 0, 5000)
            xs[2][7] = np.nan
            first = await asyncio.gather(*(link.average(x) for link, x in zip(links[:2], xs, strict=False)))
            assert np.isfinite(first[0]).all()
            assert np.array_equal(await links[2].average(xs[2]), first[0])

    asyncio.run(main())


def test_a_residual_outlives_a_round_that_some_worker_cannot_encode() -> None:
    async def main() -> None:
        codec = Lattice(2, 2, feedback=True)
        memories, xs = [Residual(codec) for _ in range(2)], tensors(2, 0, 500)
        async with serving(2) as site, linked(site, 2) as links:

            async def average(xs: list[Any]) -> list[Any]:
                return await asyncio.gather(
                    *(link.average(x, residual=m) for link, x, m in zip(links, xs, memories, strict=True))
                )

            await average(xs)
            before = [memory.value.copy() for memory in memories]
            got = await average([xs[0], np.full(500, np.inf, np.float32)])
            assert np.isinf(got[0]).all()
            assert all(np.array_equal(memory.value, kept) for memory, kept in zip(memories, before, strict=True))
            await average(xs)

    asyncio.run(main())


def test_a_restart_does_not_lose_a_round_that_some_worker_cannot_encode() -> None:
    async def main() -> None:
        async with serving(2, shards=2, timeout=30) as site, linked(site, 2) as links:
            xs = tensors(2, 0, 500)
            xs[0][3] = np.nan
            opened = links[1]._session.open

            async def wait(codec: Any, shape: Any, round_id: int, *rest: Any) -> Any:
                if round_id & FOLLOW_UP:
                    await site.stop()
                    await site.start()
                return await opened(codec, shape, round_id, *rest)

            links[1]._session.open = wait  # type: ignore[method-assign]
            got = await asyncio.gather(*(link.average(x) for link, x in zip(links, xs, strict=True)))
            assert got[0].tobytes() == got[1].tobytes() == sumwire.average(Sparse(2), xs).tobytes()

    asyncio.run(main())


def test_a_refusal_of_a_huge_tensor_costs_the_server_nothing() -> None:
    async def main() -> None:
        async with serving(2) as site:
            codec, size = Lattice(2, block=64), 1 << 32
            peers = [await Peer.greeted(site, rank, 2) for rank in range(2)]
            for peer in peers:
                peer.say(describe(codec))
                peer.send(to_bytes(codec.refuse((size,)), round_id=0))
            for peer in peers:
                joined = await peer.until(Frame)
                assert not joined.terms(codec, (size,)).encodable
                assert joined.length == 0
            assert site.shards[0].memory.used < 1 << 16
            peers[0].say(control.Abstain(0, "it has changed its mind"))
            peers[1].say(control.Ask(0))
            assert not (await peers[1].until(Frame)).terms(codec, (size,)).encodable, "what is over stays as it is"
            for peer in peers:
                peer.close()

    asyncio.run(main())


def test_a_refusal_is_not_outvoted_by_a_cap() -> None:
    async def main() -> None:
        async with serving(3, scale_cap=2.0) as site, linked(site, 3) as links:
            xs = tensors(3, 0, 500)
            xs[0][3] = np.nan
            got = await asyncio.gather(*(link.average(x) for link, x in zip(links, xs, strict=True)))
            assert all(mean.tobytes() == sumwire.average(Sparse(3), xs).tobytes() for mean in got)

    asyncio.run(main())
