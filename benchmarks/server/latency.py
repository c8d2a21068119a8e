"""Latency of rounds with up to a thousand workers; every sum is compared with one made here."""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import Any

import numpy as np

import sumwire
from benchmarks.server.common import BITS, LIMIT, Task, spawn, tensor
from sumwire.errors import SumwireError
from sumwire.lab.record import Record
from sumwire.wire import control, frame
from sumwire.wire.frame import describe
from sumwire.wire.limits import MAX_BODY, Kind
from sumwire.wire.stream import Stream


@dataclass
class Book:
    """What all workers of a latency run send, and the sum that they must get."""

    codec: sumwire.Lattice
    proposals: list[Any]
    payloads: list[Any]
    sum: bytes

    @classmethod
    def make(cls, workers: int, size: int) -> Book:
        codec = sumwire.Lattice(workers, BITS)
        xs = [tensor(rank, size) for rank in range(workers)]
        proposals = [codec.propose(x) for x in xs]
        terms = reduce(or_, proposals)
        payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
        return cls(codec, proposals, payloads, b"".join(frame.buffers(codec.add(payloads).narrow())[1:]))


class Client(Stream):
    """A worker with a payload that is ready, which goes from round to round."""

    def __init__(self, book: Book, rank: int, rounds: int) -> None:
        super().__init__(MAX_BODY)
        self._account, self._rank, self._rounds = book, rank, rounds
        loop = asyncio.get_running_loop()
        self.welcome: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self._round, self._since = -1, 0.0
        self.seconds: list[float] = []
        payload = book.payloads[rank]
        self._frames = [
            (
                frame.to_bytes(book.proposals[rank], round_id=round_id),
                frame.to_bytes(replace(payload, round_id=round_id)),
            )
            for round_id in range(rounds)
        ]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        workers = self._account.codec.workers
        self.say(control.Hello("default", "", self._rank, str(self._rank), workers, position=0, known=""))
        self.say(describe(self._account.codec))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.refused(SumwireError("the connection was lost"))

    def begin(self) -> None:
        self._round, self._since = self._round + 1, time.perf_counter()
        if self._round < self._rounds:
            self.send(self._frames[self._round][0])
        else:
            self.done.set_result(None)

    def control_received(self, message: control.Control) -> None:
        if isinstance(message, control.Welcome):
            self.welcome.set_result(None)
        else:
            self.refused(SumwireError(str(message)))

    def frame_received(self, received: frame.Frame) -> None:
        if received.round_id != self._round:
            raise SumwireError(f"round {received.round_id} instead of {self._round}")
        if received.kind is Kind.TERMS:
            self.send(self._frames[self._round][1])
            return
        if received.count != self._account.codec.workers or received.body != self._account.sum:
            raise SumwireError(f"round {self._round} has a wrong sum")
        self.seconds.append(time.perf_counter() - self._since)
        self.begin()

    def refused(self, error: SumwireError) -> None:
        for future in (self.welcome, self.done):
            if not future.done():
                future.set_exception(error)


async def clients(task: Task, ranks: range, gate: Any) -> list[list[float]]:
    book, loop = Book.make(task.workers, task.size), asyncio.get_running_loop()
    host, port = task.address.split(":")
    own = []
    for rank in ranks:
        _, client = await loop.create_connection(partial(Client, book, rank, task.rounds), host, int(port))
        await client.welcome
        own.append(client)
    gate.wait(LIMIT)
    for client in own:
        client.begin()
    await asyncio.gather(*(client.done for client in own))
    gate.wait(LIMIT)  # or the others would see connections end
    return [client.seconds for client in own]


async def links(task: Task, ranks: range, gate: Any) -> list[list[float]]:
    """The same by `AsyncLink.average`, which encodes and decodes."""
    codec = sumwire.Lattice(task.workers, BITS)

    async def work(link: sumwire.AsyncLink) -> list[float]:
        x, seconds = tensor(link.rank, task.size), []
        for _ in range(task.rounds):
            start = time.perf_counter()
            await link.average(x)
            seconds.append(time.perf_counter() - start)
        return seconds

    async with AsyncExitStack() as stack:
        own = [
            await stack.enter_async_context(
                sumwire.AsyncLink(task.address, rank=rank, workers=task.workers, codec=codec)
            )
            for rank in ranks
        ]
        gate.wait(LIMIT)
        found = await asyncio.gather(*(work(link) for link in own))
        gate.wait(LIMIT)
    return found


def generate(how: Callable[..., Any], task: Task, ranks: range, gate: Any, out: Any) -> None:
    """A process that is many workers."""
    raise_limit()
    try:
        out.put(asyncio.run(how(task, ranks, gate)))
    except BaseException as error:
        gate.abort()
        out.put(f"{type(error).__name__}: {error}")
        raise


def raise_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def latencies(how: Callable[..., Any], workers: int, given: argparse.Namespace) -> np.ndarray[Any, Any]:
    """Seconds of each worker and round."""
    processes = min(given.processes, workers)
    with sumwire.Server(workers) as server:
        gate, out = spawn.Barrier(processes), spawn.Queue()
        task = Task(server.address, workers, given.size, given.rounds, 1, 1)
        shares = [range(index, workers, processes) for index in range(processes)]
        own = [spawn.Process(target=generate, args=(how, task, ranks, gate, out)) for ranks in shares]
        for process in own:
            process.start()
        found = [out.get(timeout=LIMIT) for _ in own]
        for process in own:
            process.join()
    for each in found:
        if isinstance(each, str):
            sys.exit(f"{workers} workers: {each}")
    return np.concatenate([np.array(each) for each in found])


def latency(given: argparse.Namespace) -> None:
    raise_limit()
    counts = [int(count) for count in given.workers.split(",")]
    print(f"\n### Latency of rounds: {given.size:,} coordinates, {BITS} bits, loopback\n")
    print(f"`python -m benchmarks.server {' '.join(sys.argv[1:])}`: from a worker's terms to its sum, over all workers")
    print(f"and {given.rounds} rounds but the first, none with an error; {given.processes} processes are all workers\n")
    print("| workers | how | p50, ms | p99, ms | slowest, ms | rounds/s | messages/s at the server, in + out |")
    print("|---|---|---|---|---|---|---|")
    for workers in counts:
        for name, how in {"encoded before, every sum checked": clients, "`AsyncLink.average`": links}.items():
            found = latencies(how, workers, given)
            skip = min(3, given.rounds // 4)  # the first rounds build tables
            p50, p99, top = (1e3 * float(q) for q in np.quantile(found[:, skip:], (0.5, 0.99, 1.0)))
            pace = 1 / float(np.mean(np.max(found[:, skip:], axis=0)))
            cells = [f"{workers:,}", name, f"{p50:.2f}", f"{p99:.2f}", f"{top:.2f}", f"{pace:.1f}"]
            print("| " + " | ".join([*cells, f"{4 * workers * pace:,.0f}"]) + " |", flush=True)
            Record(given.json, seed=0).add(
                coordinates=given.size,
                rounds=given.rounds,
                processes=given.processes,
                workers=workers,
                how=name,
                p50_ms=p50,
                p99_ms=p99,
                slowest_ms=top,
                rounds_per_second=pace,
                messages_per_second=4 * workers * pace,
            )
    print(f"\n- The bar, {max(counts):,} connected workers without error: **met**.")
