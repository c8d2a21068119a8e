"""Racks below a root: two levels and eight workers, over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import AsyncLink, Codec, ConfigError, Lattice, RoundError, Sketch, Sparse
from sumwire.aggregate.server.options import Options, Rules, Upstream
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import RowSlices
from sumwire.codec.snapshot import Snapshot
from tests.aggregate.client.test_late import Recorder
from tests.aggregate.server.serving import Site, linked, racked, serving, tensors

WORKERS, SIZE = 8, 3000

CODECS: dict[str, Codec] = {
    "narrow": Lattice(WORKERS, 4, block=64),
    "exact": Lattice(WORKERS, 3, block=64, down_bits="exact"),
    "sparse": Sparse(WORKERS),
    "sketch": Sketch(WORKERS),
    "stuck": Sketch(WORKERS, rows_per_nonzero=0.3),
}


async def average(links: list[AsyncLink], codec: Codec, r: int, ranks: Any = None) -> list[Any]:
    xs = tensors(WORKERS, r, SIZE, 0.3)
    return await asyncio.gather(
        *(link.average(xs[link.rank], codec=codec, round_id=r) for link in links if ranks is None or link.rank in ranks)
    )


class Tree:
    """A root, two racks, and a link of each worker to its rack."""

    def __init__(self, root: dict[str, Any], rack: dict[str, Any]) -> None:
        self._options, self._stack = (root, rack), AsyncExitStack()

    async def __aenter__(self) -> Tree:
        root, rack = self._options
        self.root: Site = await self._stack.enter_async_context(serving(WORKERS, **root))
        self.racks: list[Site] = await self._stack.enter_async_context(racked(self.root, WORKERS, 2, **rack))
        halves = [(self.racks[0], range(4)), (self.racks[1], range(4, 8))]
        self.links = [
            link
            for site, ranks in halves
            for link in await self._stack.enter_async_context(linked(site, WORKERS, ranks))
        ]
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)


def tree(rack: dict[str, Any] | None = None, **root: Any) -> Tree:
    return Tree(root, rack or {})


@pytest.mark.parametrize("shards", [1, 2])
def test_a_tree_gives_the_bits_of_one_server(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.codec.lattice.sharding.PART", 512)

    async def main() -> None:
        async with tree(shards=shards) as both:
            first = both.links[0].first_round
            for k, codec in enumerate(CODECS.values()):
                r = first + k
                right = sumwire.average(codec, tensors(WORKERS, r, SIZE, 0.3), round_id=r)
                for mean in await average(both.links, codec, r):
                    np.testing.assert_array_equal(mean, right)
            assert both.root.aggregator.finished
            assert both.root.aggregator.open_rounds == both.racks[0].aggregator.open_rounds == 0

    asyncio.run(main())


def test_nan_rows_and_snapshots_go_through_a_tree() -> None:
    async def main() -> None:
        async with tree() as both:
            xs = tensors(WORKERS, 0, SIZE)
            xs[5][7] = np.nan
            means = await asyncio.gather(*(link.average(xs[link.rank], round_id=1) for link in both.links))
            for mean in means:
                np.testing.assert_array_equal(mean, sumwire.average(Sparse(WORKERS), xs))
            rows = [RowSlices((50, 4), np.array([k, 30]), np.full((2, 4), k / 3, np.float32)) for k in range(WORKERS)]
            right = sumwire.average(Rows(WORKERS), rows)
            codec = Rows(WORKERS)
            got = await asyncio.gather(*(each.average(rows[each.rank], codec=codec, round_id=2) for each in both.links))
            assert all(np.array_equal(mean.values, right.values) for mean in got)
            snapshots, words = Snapshot(WORKERS), np.arange(9, dtype=np.int32)

            async def snapshot(link: AsyncLink) -> Any:
                terms = await link.join(snapshots.propose(words * link.rank), round_id=3)
                return await link.add(snapshots.encode(words, terms, rank=link.rank, round_id=3))

            for total in await asyncio.gather(*map(snapshot, both.links)):
                assert (total.count, snapshots.decode(total).tolist()) == (WORKERS, (words * 7).tolist())

    asyncio.run(main())


def test_a_rack_goes_on_without_a_straggler_of_its_own() -> None:
    """Its quorum holds in the rack; the root waits for both racks, and the sum is of seven."""

    async def main() -> None:
        codec = Lattice(WORKERS, 4, block=64, feedback=True)
        memory, xs = Recorder(codec), tensors(WORKERS, 5, SIZE)
        xs[3] *= 0.01  # the others' terms cover it
        async with tree(rack={"quorum": 3}) as both:

            async def work(link: AsyncLink) -> Any:
                residual = memory if link.rank == 3 else Recorder(codec)
                return await link.average(xs[link.rank], round_id=5, residual=residual)

            means = await asyncio.gather(*(work(link) for link in both.links if link.rank != 3))
            means.append(await work(both.links[3]))
        assert all(np.array_equal(mean, means[0]) for mean in means)
        assert memory.given_back, "its payload is in no sum, and must be in its residual"
        np.testing.assert_allclose(memory.value, xs[3], atol=1e-5)
        np.testing.assert_allclose(np.mean(means[0] * WORKERS), np.mean(np.sum(xs, 0) - xs[3]), atol=0.2)

    asyncio.run(main())


@pytest.mark.parametrize("rule", [{"quorum": 4}, {"deadline": 0.3}])
@pytest.mark.parametrize("name", ["narrow", "sparse"])
def test_the_root_goes_on_without_a_rack(rule: dict[str, Any], name: str) -> None:
    """A whole rack that is late counts as its workers being late: they get the others' sum, and are told so."""

    async def main() -> None:
        codec, xs = CODECS[name], tensors(WORKERS, 3, SIZE, 0.3)
        async with tree(**rule) as both:
            early = await average(both.links, codec, 3, range(4))
            terms = codec.propose(xs[0])
            for x in xs[1:4]:
                terms = terms | codec.propose(x)
            payloads = [codec.encode(x, terms, rank=rank, round_id=3) for rank, x in enumerate(xs[:4])]
            right = codec.decode(codec.add(payloads).narrow())
            assert all(np.array_equal(mean, right) for mean in early)
            late = await average(both.links, codec, 3, range(4, 8))
            assert all(np.array_equal(mean, right) for mean in late)
            assert both.root.aggregator.late or both.racks[1].aggregator.late

    asyncio.run(main())


def test_a_rack_that_cannot_contribute_says_why() -> None:
    async def main() -> None:
        async with tree(rack={"timeout": 1.5}) as both:
            with pytest.raises(RoundError, match=r"the rack of workers 0..3 takes no part: workers 3 sent nothing"):
                await average(both.links, CODECS["narrow"], 2, {0, 1, 2, 4, 5, 6, 7})
            r = both.links[0].upcoming + 9
            means = await average(both.links, CODECS["narrow"], r)  # and the job goes on
            assert np.array_equal(
                means[0], sumwire.average(CODECS["narrow"], tensors(WORKERS, r, SIZE, 0.3), round_id=r)
            )

    asyncio.run(main())


@pytest.mark.parametrize("victim", ["a rack", "the root"])
def test_rounds_survive_a_restart(victim: str) -> None:
    """What was in flight is sent again; every round has the bits of all eight workers."""

    async def main() -> None:
        async with tree() as both:
            first = both.links[0].first_round

            async def work(link: AsyncLink) -> list[Any]:
                means = []
                for r in range(first, first + 12):
                    x = tensors(WORKERS, r, SIZE, 0.3)[link.rank]
                    means.append(await link.average(x, codec=CODECS["narrow"], round_id=r))
                    await asyncio.sleep(0.02)
                return means

            async def disturb() -> None:
                await asyncio.sleep(0.15)
                site = both.racks[0] if victim == "a rack" else both.root
                await site.stop()
                await asyncio.sleep(0.1)
                await site.start()

            *results, _ = await asyncio.gather(*map(work, both.links), disturb())
        for k, means in enumerate(zip(*results, strict=True)):
            r = first + k
            right = sumwire.average(CODECS["narrow"], tensors(WORKERS, r, SIZE, 0.3), round_id=r)
            assert all(np.array_equal(mean, right) for mean in means), f"round {k}"

    asyncio.run(main())


def test_workers_of_a_rack_without_a_root_are_told() -> None:
    async def main() -> None:
        async with serving(WORKERS) as root:
            upstream = Upstream("127.0.0.1", root.port)
            async with serving(WORKERS, upstream=upstream, ranks=(0, 4), shards=2) as rack:
                with pytest.raises(RoundError, match="upstream server has 1 shards, this rack 2"):
                    async with linked(rack, WORKERS, [0]):
                        pass
        async with (
            serving(WORKERS, upstream=Upstream("127.0.0.1", 9), ranks=(0, 4), timeout=0.3) as rack,
            linked(rack, WORKERS, [], timeout=3.0),
        ):
            with pytest.raises(RoundError, match="upstream of this rack: no server at 127.0.0.1:9"):
                async with linked(rack, WORKERS, [1]):
                    pass

    asyncio.run(main())


def test_only_the_workers_of_a_rack_may_connect_to_it() -> None:
    async def main() -> None:
        async with tree() as both:
            with pytest.raises(RoundError, match=r"ranks 5..5 are not in 0..3, those of this server"):
                async with linked(both.racks[0], WORKERS, [5]):
                    pass
            with pytest.raises(RoundError, match=r"ranks 2..2 overlap those of the peer with rank 0"):
                async with linked(both.root, WORKERS, [2]):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("rules", "options", "said"),
    [
        ({"ranks": (0, 4)}, {}, "upstream and ranks belong together"),
        ({}, {"upstream": Upstream("a", 1)}, "upstream and ranks belong together"),
        ({"ranks": (0, 4), "scale_cap": 4.0}, {"upstream": Upstream("a", 1)}, "scale_cap needs the scales of all"),
        ({"ranks": (6, 9)}, {}, r"ranks 6..8 are not some of 0..7"),
        ({"ranks": (0, 4), "quorum": 5}, {}, r"quorum=5 is not in 1..4"),
    ],
)
def test_impossible_racks_are_refused(rules: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Options(Rules(WORKERS, **rules), **options)
