"""A worker's process in the chaos: takes part in rounds, several at once, and judges every mean.

Tensors are functions of rank and round, so every worker knows what every payload must be. Those that carry a residual
depend on what its worker has been through: workers write such payloads into a folder that all can read.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

import sumwire
from sumwire.aggregate.client.pending import Pending
from sumwire.aggregate.protocol import HISTORY
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.codec.lattice.coding import decode_part
from sumwire.errors import MismatchError
from sumwire.wire import control, frame

WORKERS = 3
RETRY = 0.05
LATE = 0.1
"""Of all rounds are begun late, where others need not wait."""
SLOTS = 3
"""Tensors that come again and again, each with a residual."""
CODECS = (
    sumwire.Lattice(WORKERS, 4, block=64),
    sumwire.Sparse(WORKERS),
    sumwire.Lattice(WORKERS, 6, block=128, feedback=True),
    sumwire.Sketch(WORKERS),
    sumwire.Sketch(WORKERS, rows_per_nonzero=0.2),  # which gets stuck, and needs a second exchange
)


def tensor(rank: int, round_id: int, size: int | None = None) -> np.ndarray[Any, Any]:
    size = int(np.random.default_rng(round_id).integers(0, 3000)) if size is None else size
    rng = np.random.default_rng([rank, round_id])
    return (rng.standard_normal(size) * (rng.random(size) < 0.2)).astype(np.float32)


def codec_of(round_id: int) -> Any:
    return CODECS[round_id * 7 // 3 % len(CODECS)]


def oracle(round_id: int) -> np.ndarray[Any, Any]:
    return sumwire.average(codec_of(round_id), [tensor(rank, round_id) for rank in range(WORKERS)], round_id=round_id)


class Wrong(Exception):
    """A mean is not what it must be."""


class Worker:
    """Rounds that all wait for: every mean is that of all workers."""

    def __init__(self, link: sumwire.AsyncLink, seed: int) -> None:
        self.link, self.rng = link, random.Random(seed)

    async def run(self, rounds: int) -> None:
        in_flight: set[asyncio.Task[None]] = set()
        while self.link.upcoming < rounds:
            if len(in_flight) >= self.rng.randrange(1, HISTORY):
                _, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
                continue
            await self.before(self.link.upcoming)
            in_flight.add(asyncio.create_task(self.one(self.link.upcoming)))
            await asyncio.sleep(0)
        if in_flight:
            await asyncio.wait(in_flight)

    async def before(self, r: int) -> None:
        """What must be done before the next round begins."""

    async def one(self, r: int) -> None:
        began, more = time.monotonic(), {}
        try:
            more = await self.judge(r)
            end = "right"
        except Wrong as error:
            end = f"WRONG: {error}"
        except sumwire.SumwireError as error:
            end = f"failed: {error}"
            if "refuses" in str(error) or "no server" in str(error):
                tell(round=r, end=end)
                raise SystemExit(3) from error
        tell(round=r, end=end, seconds=round(time.monotonic() - began, 3), **more)

    async def judge(self, r: int) -> dict[str, int]:
        """Take part in a round, and say whether its mean is right."""
        codec = codec_of(r)
        memory = sumwire.Residual(codec) if codec == CODECS[2] else None
        mean = await self.link.average(tensor(self.link.rank, r), codec=codec, round_id=r, residual=memory)
        require(np.array_equal(mean, oracle(r)), "it is not the mean of all workers")
        return {}


class Quorum(Worker):
    """Rounds that do not wait for all: every mean is that of the workers whom its sums name, and what came too late
    is back in the residual."""

    def __init__(self, link: sumwire.AsyncLink, seed: int, quorum: int, records: Path) -> None:
        super().__init__(link, seed)
        self._quorum, self._records = quorum, records
        self._pending: dict[int, Pending] = {}
        self._residuals = [Recorder(CODECS[2], records) for _ in range(SLOTS)]
        self._busy = [asyncio.Lock() for _ in range(SLOTS)]
        close = link._session.close

        def seen(pending: Pending) -> None:
            self._pending[pending.round_id] = pending
            close(pending)

        link._session.close = seen  # type: ignore[method-assign]

    async def before(self, r: int) -> None:
        if self.rng.random() < LATE:
            await asyncio.sleep(0.3 * self.rng.random() ** 3)
        if codec_of(r).family == CODECS[2].family:  # of one residual, no two rounds may be in flight
            async with self._busy[r % SLOTS]:
                pass

    async def judge(self, r: int) -> dict[str, int]:
        codec, slot = codec_of(r), r % SLOTS
        try:
            if codec.family == CODECS[2].family:
                async with self._busy[slot]:
                    return await self._with_residual(r, self._residuals[slot], 500 + 700 * slot)
            mean = await self.link.average(tensor(self.link.rank, r), codec=codec, round_id=r)
            pending = self._pending[r]
            self._check_terms(pending)
            without = self._check_sums(pending, lambda rank: _encoded(pending, tensor(rank, r), rank))
            if isinstance(codec, sumwire.Sketch):
                total = pending.sums[0, 0]
                right = codec.complete(
                    codec.peel(total),
                    np.stack([codec.pick(tensor(rank, r), codec.peel(total).leftovers) for rank in total.ranks]),
                )
            else:
                right = codec.decode(pending.total())
            require(np.array_equal(mean, right), "it is not the mean of its sums")
            return {"without": without}
        finally:
            for round_id in (r, r | FOLLOW_UP):
                self._pending.pop(round_id, None)

    async def _with_residual(self, r: int, memory: Recorder, size: int) -> dict[str, int]:
        rank = self.link.rank
        x = tensor(rank, r, size)
        before = np.zeros(size, np.float32) if memory.empty else memory.value.copy()
        memory.payload = None
        try:
            mean = await self.link.average(x, round_id=r, residual=memory)
        except sumwire.RoundError:
            require(np.allclose(memory.value, before + x, atol=1e-4), "a tensor of a failed round is lost")
            raise
        pending = self._pending[r]
        without = self._check_sums(pending, lambda rank: memory.read(pending, rank))
        right = memory.codec.decode(pending.total(), divide_by="workers")
        require(np.array_equal(mean, right), "it is not the mean of its sums")
        counted = np.zeros(size, np.float32)
        sent = memory.payload is not None and pending.abstained is None and not pending.overruled
        back = 0
        for span in (span for spans in pending.spans for span in spans):
            if sent and rank not in _missing(pending, span):
                where, values = decode_part(memory.codec, memory.payload.part(*span))
                counted[where] = values
            else:
                back += 1
        require(np.allclose(counted + memory.value, before + x, atol=1e-4), "what was not counted is lost")
        return {"without": without, "back": back}

    def _check_sums(self, pending: Pending, payloads_of: Any) -> int:
        """Every sum is that of exactly those whom it names; says how many there are that somebody is missing from."""
        codec = pending.codec
        for span, total in pending.sums.items():
            ranks = sorted(set(range(WORKERS)) - _missing(pending, span))
            require(len(ranks) == total.count >= self._quorum, f"{total.count} payloads, but of {ranks}")
            require(getattr(total, "ranks", tuple(ranks)) == tuple(ranks), "its note names others than it does")
            each = [[_part(payload, span) for payload in payloads_of(rank)] for rank in ranks]
            sums = (frame.to_bytes(codec.add(parts).narrow()) for parts in product(*each))
            require(frame.to_bytes(total) in sums, f"part {span} is not the sum of {ranks}")
        return sum(bool(_missing(pending, span)) for span in pending.sums)

    def _check_terms(self, pending: Pending) -> None:
        """They are those of enough workers, joined."""
        proposals = [pending.codec.propose(tensor(rank, pending.round_id)) for rank in range(WORKERS)]
        joined = set()
        for some in _subsets(proposals, self._quorum):
            terms = some[0]
            for other in some[1:]:
                terms |= other
            joined.add(terms.digest)
        require(pending.terms.digest in joined, "its terms are those of nobody")


class Recorder(sumwire.Residual):
    """Writes every payload to where other workers find it, before it is sent."""

    def __init__(self, codec: sumwire.Lattice, records: Path) -> None:
        super().__init__(codec)
        self._records = records
        self.payload: Any = None

    def encode(self, terms: Any, *, rank: int, round_id: int = 0, **options: Any) -> Any:
        self.payload = super().encode(terms, rank=rank, round_id=round_id, **options)
        folder = self._records / str(round_id)
        folder.mkdir(exist_ok=True)
        draft = folder / f"draft-{rank}-{os.getpid()}"
        draft.write_bytes(frame.to_bytes(self.payload))
        draft.rename(folder / f"{rank}-{os.getpid()}")
        return self.payload

    def read(self, pending: Pending, rank: int) -> list[Any]:
        """The payloads that a worker's processes had for a round, under these terms."""
        found = []
        for path in (self._records / str(pending.round_id)).glob(f"{rank}-*"):
            try:
                found.append(frame.parse(path.read_bytes()).payload(self.codec, pending.terms))
            except MismatchError:
                continue  # it was made under other terms
        return found


def _encoded(pending: Pending, x: Any, rank: int) -> list[Any]:
    return [pending.codec.encode(x, pending.terms, rank=rank, round_id=pending.round_id)]


def _part(payload: Any, span: tuple[int, int]) -> Any:
    return payload if span == (0, 0) else payload.part(*span)


def _missing(pending: Pending, span: tuple[int, int]) -> set[int]:
    return control.read_ranks(pending.without[span].ranks) if span in pending.without else set()


def _subsets(items: list[Any], least: int) -> Iterable[tuple[Any, ...]]:
    return (some for size in range(least, len(items) + 1) for some in combinations(items, size))


def require(good: bool, why: str) -> None:
    if not good:
        raise Wrong(why)


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def work(address: str, rank: int, rounds: int, seed: int, quorum: int | None, records: str) -> None:
    """Take part in rounds until all are done; tell what came of each."""
    async with sumwire.AsyncLink(address, rank=rank, workers=WORKERS, timeout=30, retry=RETRY) as link:
        worker = Worker(link, seed) if quorum is None else Quorum(link, seed, quorum, Path(records))
        await worker.run(rounds)
        tell(end="finished")
        await asyncio.to_thread(sys.stdin.read)  # others may need our results
