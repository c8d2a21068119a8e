"""Everything goes wrong at random, and every sum is checked: `python -m tests.aggregate.server.chaos --rounds 10000`.

Workers are processes that talk to a server of two shards through a proxy. It drops or duplicates 5 % of all messages
(but for greetings) and cuts connections; a worker is killed every few seconds and started again; twice, or
`--restarts` times, the server is killed and started again at its port. Workers know what every mean must be, bit for
bit (chaos_work.py): that of all of them, or, with `--quorum 2`, of those whom the result names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sumwire
from sumwire.aggregate.server.server import _listen
from sumwire.lab.record import Record, add_option
from sumwire.wire import control
from sumwire.wire.frame import parse_header
from sumwire.wire.header import HEADER_SIZE
from tests.aggregate.server.chaos_work import WORKERS, work

SHARDS = 2
LOSS = 0.05
CUT = 0.0005
KILL_EVERY = 3.0


# What is between worker and server


class Proxy:
    """Passes messages on, or not."""

    def __init__(self, target: int, rng: random.Random, counts: Counter[str]) -> None:
        self._target, self._rng, self._counts = target, rng, counts
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        for source, sink, other in ((reader, back, writer), (there, writer, back)):
            task = asyncio.create_task(self._pump(source, sink, other))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, other: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                message, greeting = await _message(source)
                self._counts["messages"] += 1
                if self._rng.random() < CUT:
                    self._counts["cut"] += 1
                    sink.write(message[: self._rng.randrange(len(message))])
                    break
                if greeting or self._rng.random() >= LOSS:
                    sink.write(message)
                elif self._rng.random() < 0.5:
                    self._counts["duplicated"] += 1
                    sink.write(message + message)
                else:
                    self._counts["dropped"] += 1
                await sink.drain()
        for end in (sink, other):
            end.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _message(source: asyncio.StreamReader) -> tuple[bytes, bool]:
    """One message, and whether it is a greeting."""
    front = await source.readexactly(4)
    if front == control.MAGIC:
        front += await source.readexactly(control.CONTROL_SIZE - 4)
        greeting = front[5] in (control.Word.HELLO, control.Word.WELCOME)
        return front + await source.readexactly(control.read_length(front)), greeting
    front += await source.readexactly(HEADER_SIZE - 4)
    return front + await source.readexactly(parse_header(front).length), False


# The job


@dataclass
class Outcome:
    """What came of it."""

    ends: Counter[str] = field(default_factory=Counter)
    """How rounds ended, at all workers."""
    right: set[int] = field(default_factory=set)
    """Rounds that some worker has the right mean of."""
    failures: dict[int, str] = field(default_factory=dict)
    proxy: Counter[str] = field(default_factory=Counter)
    partial: int = 0
    """Sums, or parts of them, that somebody was missing from."""
    back: int = 0
    """Payloads, or parts of them, that came too late and went back into a residual."""
    kills: int = 0
    restarts: int = 0
    seconds: float = 0.0
    slowest: float = 0.0

    def report(self) -> str:
        return (
            f"{len(self.right)} rounds in {self.seconds:.0f} s: {self.ends['right']} means right, "
            f"{self.ends['WRONG']} wrong, {len(self.failures)} rounds failed; {self.proxy['messages']} messages, "
            f"{self.proxy['dropped']} dropped, {self.proxy['duplicated']} duplicated, {self.proxy['cut']} connections "
            f"cut, {self.partial} sums without somebody, {self.back} payloads back in residuals, "
            f"{self.kills} workers killed, {self.restarts} server restarts; slowest round {self.slowest:.1f} s"
        )

    def figures(self) -> dict[str, float]:
        """What benchmarks/results keeps of it."""
        return {
            "means_checked": self.ends["right"] + self.ends["WRONG"],
            "wrong_means": self.ends["WRONG"],
            "failed_rounds": len(self.failures),
            "messages_lost": self.proxy["dropped"],
            "messages_doubled": self.proxy["duplicated"],
            "connections_cut": self.proxy["cut"],
            "workers_killed": self.kills,
            "restarts": self.restarts,
            "seconds": self.seconds,
        }


class Job:
    """Workers, proxy and server, and what happens to them."""

    def __init__(
        self, rounds: int, seconds: float, seed: int, quorum: int | None, restarts: int, say: Callable[[str], None]
    ) -> None:
        self._rounds, self._seconds, self._rng, self._say = rounds, seconds, random.Random(seed), say
        self._restarts, self._quorum, self._records = restarts, quorum, tempfile.TemporaryDirectory()
        self.outcome = Outcome()
        self._server = self._new_server()
        self._workers: dict[int, asyncio.subprocess.Process] = {}
        self._watching: dict[int, asyncio.Task[None]] = {}
        self._finished: set[int] = set()
        self._over = asyncio.Event()

    def _new_server(self, port: int = 0) -> sumwire.Server:
        return sumwire.Server(WORKERS, shards=SHARDS, timeout=20, quorum=self._quorum, port=port, first_round=0)

    async def run(self) -> Outcome:
        began = time.monotonic()
        self._server.start()
        proxies = [Proxy(self._server.port + shard, self._rng, self.outcome.proxy) for shard in range(SHARDS)]
        sockets = _listen("127.0.0.1", 0, SHARDS)
        listening = [
            await asyncio.start_server(proxy.accept, sock=sock, limit=1 << 20)
            for proxy, sock in zip(proxies, sockets, strict=True)
        ]
        self._address = f"127.0.0.1:{sockets[0].getsockname()[1]}"
        for rank in range(WORKERS):
            await self._begin(rank)
        trouble = [asyncio.create_task(self._kill_workers()), asyncio.create_task(self._restart_server())]
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), self._seconds)
        for task in (*trouble, *self._watching.values()):
            task.cancel()
        for process in self._workers.values():
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        for server in listening:
            server.close()
        for proxy in proxies:
            await proxy.stop()
        self._server.stop()
        self._records.cleanup()
        await asyncio.sleep(0.05)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    async def _begin(self, rank: int) -> None:
        command = [sys.executable, "-m", __spec__.name if __spec__ else "chaos", "--worker", self._address]
        command += ["--rank", str(rank), "--rounds", str(self._rounds), "--seed", str(self._rng.randrange(1 << 30))]
        command += ["--records", self._records.name]
        command += [] if self._quorum is None else ["--quorum", str(self._quorum)]
        self._workers[rank] = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        self._watching[rank] = asyncio.create_task(self._watch(rank, self._workers[rank]))

    async def _watch(self, rank: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # a killed one may not finish its line
                self._note(rank, json.loads(line))
        await process.wait()
        if rank not in self._finished:
            await self._begin(rank)

    def _note(self, rank: int, told: dict[str, Any]) -> None:
        end, outcome = told["end"], self.outcome
        if end == "finished":
            self._finished.add(rank)
            if len(self._finished) == WORKERS:
                self._over.set()
            return
        outcome.ends[end.split(":")[0]] += 1
        outcome.partial += told.get("without", 0)
        outcome.back += told.get("back", 0)
        outcome.slowest = max(outcome.slowest, told.get("seconds", 0.0))
        if end == "right":
            outcome.right.add(told["round"])
            if len(outcome.right) % 500 == 0:
                self._say(f"round {told['round']}: {outcome.ends}")
        else:
            outcome.failures.setdefault(told["round"], f"worker {rank}: {end}")
            self._say(f"worker {rank}, round {told['round']}: {end}")

    async def _kill_workers(self) -> None:
        before = 0
        while True:
            await asyncio.sleep(KILL_EVERY * (0.5 + self._rng.random()))
            if len(self.outcome.right) < before + 10:
                continue  # a busy machine takes long to start processes
            before = len(self.outcome.right)
            rank = self._rng.choice([r for r in range(WORKERS) if r not in self._finished] or [0])
            with suppress(ProcessLookupError):
                self._workers[rank].send_signal(signal.SIGKILL)
                self.outcome.kills += 1

    async def _restart_server(self) -> None:
        for number in range(1, self._restarts + 1):
            while len(self.outcome.right) < number * self._rounds // (self._restarts + 1):
                await asyncio.sleep(0.05)
            port = self._server.port
            for shard in self._server._shards:
                shard.kill()
            await asyncio.to_thread(self._server.stop)
            self._server = self._new_server(port)
            await asyncio.to_thread(self._server.start)
            self.outcome.restarts += 1
            self._say("the server was restarted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quorum", type=int, help=f"workers that a round waits for, of {WORKERS} (default: all)")
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--records", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    add_option(parser)
    options = parser.parse_args()
    if options.worker:
        asyncio.run(work(options.worker, options.rank, options.rounds, options.seed, options.quorum, options.records))
        return
    say = lambda text: print(text, flush=True)  # noqa: E731
    outcome = asyncio.run(_run(options.rounds, options.seconds, options.seed, options.quorum, options.restarts, say))
    print(outcome.report())
    Record(options.json, seed=options.seed).add(quorum=options.quorum, **outcome.figures())
    ended = len(outcome.right | outcome.failures.keys())
    if ended < options.rounds:
        print(f"only {ended} of {options.rounds} rounds came to an end in time")
    sys.exit(bool(outcome.ends["WRONG"]) or ended < options.rounds)


async def _run(
    rounds: int,
    seconds: float,
    seed: int,
    quorum: int | None = None,
    restarts: int = 2,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    return await Job(rounds, seconds, seed, quorum, restarts, say).run()


if __name__ == "__main__":
    main()
