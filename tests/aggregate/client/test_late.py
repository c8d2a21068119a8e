"""What comes too late for its round is not lost: it goes back to whoever sent it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from sumwire import Lattice, Residual, RoundError, Sparse
from sumwire.aggregate.protocol import HISTORY
from sumwire.codec.lattice.coding import decode_part
from sumwire.wire.limits import Kind
from tests.aggregate.server.serving import linked, serving, tensors


class Recorder(Residual):
    """Keeps what was encoded, and what came back."""

    def __init__(self, codec: Lattice) -> None:
        super().__init__(codec)
        self.payloads: dict[int, Any] = {}
        self.given_back: list[tuple[int, int, int]] = []
        self.all_corrected = 0.0

    def correct(self, x: Any) -> Any:
        self.all_corrected = self.all_corrected + np.asarray(x, np.float64)
        return super().correct(x)

    def encode(self, terms: Any, *, rank: int, round_id: int = 0, **options: Any) -> Any:
        self.payloads[round_id] = super().encode(terms, rank=rank, round_id=round_id, **options)
        return self.payloads[round_id]

    def lost(self, payload: Any) -> None:
        self.given_back.append((payload.round_id, payload.lo, payload.hi))
        super().lost(payload)

    def arrived(self) -> Any:
        """What of all payloads was counted."""
        total = np.zeros(self.value.size)
        for r, payload in self.payloads.items():
            values = self.codec.decode(payload).reshape(-1).astype(np.float64)
            for back, lo, hi in self.given_back:
                if back == r:
                    where, _ = decode_part(self.codec, payload.part(lo, hi))
                    values[where] = 0
            total += values
        return total.reshape(self.value.shape)


def test_late_payloads_go_back_into_the_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.codec.lattice.sharding.PART", 512)
    workers, rounds, shape = 3, 12, (30, 50)

    async def main() -> None:
        codec = Lattice(workers, 3, block=64, feedback=True)
        memories = [Recorder(codec) for _ in range(workers)]
        means: dict[int, list[Any]] = {r: [None] * workers for r in range(rounds)}
        rng = random.Random(4)
        async with serving(workers, shards=2, quorum=2) as site, linked(site, workers) as links:

            async def work(rank: int) -> None:
                for r in range(rounds):
                    await asyncio.sleep(rng.random() * (0.1 if rank == 2 else 0.02))
                    # The last one is small, so that the others' terms cover it when it is late; mostly.
                    x = tensors(workers, r, 1500)[rank].reshape(shape) * (0.1 if rank == 2 else 1)
                    means[r][rank] = await links[rank].average(x, round_id=r, residual=memories[rank])

            await asyncio.gather(*(work(rank) for rank in range(workers)))
        assert memories[2].given_back, "nobody was late: the test tests nothing"
        for memory in memories:
            assert np.allclose(memory.arrived() + memory.value, memory.all_corrected, atol=1e-4)
        for r in range(rounds):
            assert all(np.array_equal(mean, means[r][0]) for mean in means[r])
            parts = []
            for memory in memories:
                back = {(lo, hi) for at, lo, hi in memory.given_back if at == r}
                whole = memory.payloads.get(r)
                spans = _spans(codec, 1500, 2) if whole is not None else []
                parts += [whole.part(lo, hi) for lo, hi in spans if (lo, hi) not in back]
            expected = codec.decode(codec.add(parts).narrow(), divide_by="workers")
            assert np.array_equal(expected, means[r][0].reshape(shape))

    asyncio.run(main())


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_what_arrives_and_what_is_kept_is_what_was_sent(scale: float) -> None:
    """Quorum 3 of 4 and a rotating straggler: compared with what went in, not with what we decode."""
    workers, rounds, size = 4, 16, 3000

    async def main() -> None:
        memories = [Residual(Lattice(workers, 4, feedback=True)) for _ in range(workers)]
        went_in, means = np.zeros(size), np.zeros(size)
        async with serving(workers, quorum=3) as site, linked(site, workers) as links:

            async def average(rank: int, r: int, x: Any) -> Any:
                return await links[rank].average(x, round_id=r, residual=memories[rank])

            for r in range(rounds):
                xs, straggler = tensors(workers, r, size), r % workers
                xs[straggler] *= np.float32(scale)  # small, its payload is late; else perhaps its terms, too
                went_in += np.sum(xs, axis=0, dtype=np.float64)
                fast = [rank for rank in range(workers) if rank != straggler]
                first, *others = await asyncio.gather(*(average(rank, r, xs[rank]) for rank in fast))
                others.append(await average(straggler, r, xs[straggler]))
                assert all(np.array_equal(first, other) for other in others)
                means += first
        kept = np.sum([memory.value for memory in memories], axis=0, dtype=np.float64)
        off = workers * means + kept - went_in
        assert np.square(off).sum() < 1e-8 * np.square(went_in).sum()

    asyncio.run(main())


def test_who_is_missing_is_told_anew_by_a_server_that_was_restarted() -> None:
    """A note without its sum is of no use: the next server may have added others."""

    async def main() -> None:
        codec = Lattice(3, block=64, feedback=True)
        memories, x = [Recorder(codec) for _ in range(3)], tensors(1, 0, 500)[0]
        async with serving(3, quorum=2) as site, linked(site, 3) as links:
            got = [link._session.got for link in links]
            for link, take in zip(links, got, strict=True):  # the first server's sums are lost, its notes are not
                link._session.got = lambda shard, frame, take=take: (  # type: ignore[method-assign,misc]
                    take(shard, frame) if frame.kind is Kind.TERMS else None
                )
            tasks = [
                asyncio.create_task(link.average(x, residual=memory))
                for link, memory in zip(links[:2], memories, strict=False)
            ]
            while not all(link._session.get(0) and link._session.get(0).without for link in links[:2]):
                await asyncio.sleep(0.01)
            links[1]._session.get(0).parts.clear()  # as if it took long to send them again
            await site.stop()
            await site.start()
            while not site.shards[0].jobs or len(site.shards[0].jobs["default"].connections) < 3:
                await asyncio.sleep(0.01)
            for link, take in zip(links, got, strict=True):
                link._session.got = take  # type: ignore[method-assign]
            tasks.append(asyncio.create_task(links[2].average(x, residual=memories[2])))
            means = await asyncio.gather(*tasks)
            assert np.array_equal(means[0], means[2])
            assert [bool(memory.given_back) for memory in memories] == [False, True, False]

    asyncio.run(main())


def _spans(codec: Lattice, size: int, shards: int) -> list[tuple[int, int]]:

    return [span for shard in range(shards) for span in codec.parts(size, shard, shards)]


def test_a_worker_far_behind_catches_up_and_keeps_its_tensor() -> None:
    async def main() -> None:
        async with serving(2, quorum=1) as site, linked(site, 2) as (fast, slow):
            memory = Residual(Lattice(2, feedback=True))
            others = Residual(memory.codec)
            for r in range(HISTORY + 5):
                await fast.average(tensors(2, r, 300)[0], residual=others)
            x = tensors(2, 0, 300)[1]
            with pytest.raises(RoundError, match=f"round 0 .* is over: the job is at round {HISTORY + 5}"):
                await slow.average(x, residual=memory)
            assert np.array_equal(memory.value, x)
            assert slow.upcoming == fast.upcoming
            both = asyncio.gather(
                fast.average(np.zeros(300, np.float32), residual=others), slow.average(x, residual=memory)
            )
            assert len(await both) == 2

    asyncio.run(main())


def test_a_round_that_cannot_begin_keeps_its_tensor() -> None:
    async def main() -> None:
        async with serving(1) as site, linked(site, 1) as (link,):
            memory, x = Residual(Lattice(1, feedback=True)), tensors(1, 0, 300)[0]
            await link.close()
            with pytest.raises(RoundError, match="closed"):
                await link.average(x, residual=memory)
            assert np.array_equal(memory.value, x)

    asyncio.run(main())


def test_a_late_tensor_larger_than_the_terms_is_kept() -> None:
    async def main() -> None:
        async with serving(2, quorum=1) as site, linked(site, 2) as (fast, slow):
            memory, x = Residual(Lattice(2, feedback=True)), np.full(300, 1e6, np.float32)
            small = await fast.average(np.ones(300, np.float32), residual=Residual(memory.codec))
            assert np.array_equal(await slow.average(x, residual=memory), small)
            assert np.array_equal(memory.value, x)

    asyncio.run(main())


def test_a_deadline_does_without_those_who_are_not_there() -> None:
    async def main() -> None:
        async with serving(3, deadline=1.0) as site, linked(site, 3) as links:
            xs, codec = tensors(3, 0, 500), Sparse(3)
            got = await asyncio.gather(*(link.average(x, codec=codec) for link, x in zip(links[:2], xs, strict=False)))
            assert all(np.array_equal(mean, (xs[0] + xs[1]) / 2) for mean in got)
            assert np.array_equal(await links[2].average(xs[2], codec=codec), got[0])

    asyncio.run(main())
