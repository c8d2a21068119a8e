"""Workers of a DiLoCo run are killed, stopped and started again, the server too: all must have the same parameters.

`python -m tests.train.diloco.chaos --rounds 200`. Four workers train over a server with a quorum of two. Everyone
reports the digest of the outer state after each outer step: for each step all must be equal. `--calm` lets nothing
happen, to compare the loss.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from sumwire import Server
from sumwire.lab.record import Record, add_option
from sumwire.train import DiLoCo
from tests.ranks import context
from tests.train.diloco.workers import build

WORKERS, QUORUM, EVERY = 4, 2, 3
SERVER_TIMEOUT = 60.0
LINGER = 0.3
"""Seconds that a round waits for workers that are stopped."""
PAUSE = 0.02
"""Seconds of an inner step, so that workers take part in the same rounds, on few cores too."""
RATE = 3e-4
"""Of the inner optimizer: low enough that the loss settles long before 200 rounds. At ten times that, it settles where
noise keeps it, and depends on how often AdamW starts afresh."""
NOISE = 1.0
"""Added to what is learned, so that runs have a loss to settle at, and seeds a spread."""


def target(x: torch.Tensor) -> torch.Tensor:
    return x.roll(1, -1)


def work(rank: int, address: str, seed: int, sender: Connection) -> None:
    """Train until killed; report (steps, digest, loss of the outer parameters) after each outer step."""
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    model = build(seed=rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.randn(256, 24, generator=torch.Generator().manual_seed(7))
    diloco = DiLoCo(
        model, optimizer, address, rank=rank, workers=WORKERS, job="chaos", every=EVERY, bits=4, patience=120
    )
    while True:
        time.sleep(PAUSE)
        x, noise = torch.randn(2, 16, 24, generator=generator)
        optimizer.zero_grad()
        (model(x) - target(x) - NOISE * noise).square().mean().backward()
        optimizer.step()
        if diloco.steps % EVERY == 0:
            with torch.no_grad():
                loss = (model(held_out) - target(held_out)).square().mean().item()
            sender.send((diloco.steps, diloco.digest(), loss))


class Worker:
    """A process, and what it has reported."""

    def __init__(self, rank: int, address: str, seed: int) -> None:
        self.rank, self.stopped = rank, False
        self.receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(rank, address, seed, sender), daemon=True)
        self.process.start()
        sender.close()
        self.reports: list[tuple[int, str, float]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)  # or its pipe would fill, and it would wait
        self._reader.start()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.reports.append(self.receiver.recv())

    @property
    def member(self) -> bool:
        """Whether it takes part."""
        return bool(self.reports) and self.process.is_alive() and not self.stopped

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self._reader.join()


@dataclass
class Outcome:
    """What came of it."""

    rounds: int = 0
    digests: dict[int, set[str]] = field(default_factory=dict)
    """By inner step."""
    compared: int = 0
    events: Counter[str] = field(default_factory=Counter)
    loss: float = float("nan")
    seconds: float = 0.0
    died: list[str] = field(default_factory=list)

    @property
    def different(self) -> int:
        return sum(len(each) > 1 for each in self.digests.values())

    def report(self) -> str:
        events = ", ".join(f"{count} {what}" for what, count in sorted(self.events.items())) or "nothing happened"
        return (
            f"{self.rounds} outer rounds in {self.seconds:.0f} s: {self.compared} digests compared, {self.different} "
            f"rounds with different ones, {len(self.died)} workers died by themselves; {events}; loss {self.loss:.4f}"
        )


class Chaos:
    """Server and workers, and what happens to them."""

    def __init__(self, rounds: int, seconds: float, seed: int, say: Callable[[str], None]) -> None:
        self._rounds, self._end, self._say = rounds, time.monotonic() + seconds, say
        self._rng = random.Random(seed)
        self._server = self._new_server(0).start()
        self._workers: dict[int, Worker] = {}
        self._gone: list[Worker] = []
        self.outcome = Outcome()

    def _new_server(self, port: int) -> Server:
        return Server(WORKERS, quorum=QUORUM, linger=LINGER, timeout=SERVER_TIMEOUT, port=port)

    def run(self, events: list[str]) -> Outcome:
        """Let these happen, spread over the rounds, and let all come back afterwards."""
        began = time.monotonic()
        try:
            for rank in range(WORKERS):
                self._start(rank)
            self._wait(lambda: all(worker.member for worker in self._workers.values()))
            for number, event in enumerate(events, 1):
                self._wait(lambda n=number: self._done >= n * self._rounds // (len(events) + 1))  # type: ignore[misc]
                self._say(f"round {self._done}: {event}")
                getattr(self, f"_{event}")()
                self.outcome.events[event] += 1
            self._come_back()
            self._wait(lambda: self._done >= self._rounds)
            last = self._done + 2
            self._wait(lambda: all(self._steps(worker) >= last for worker in self._workers.values()))
        finally:
            for worker in self._workers.values():
                if worker.stopped:
                    worker.signal(signal.SIGCONT)
                worker.end()
            self._server.stop()
        for worker in (*self._gone, *self._workers.values()):
            for steps, digest, loss in worker.reports:
                self.outcome.digests.setdefault(steps, set()).add(digest)
                self.outcome.compared += 1
                if steps == self._rounds * EVERY:
                    self.outcome.loss = loss
        self.outcome.rounds, self.outcome.seconds = self._done, time.monotonic() - began
        return self.outcome

    # What happens

    def _kill(self) -> None:
        worker = self._pick()
        worker.end()
        self._gone.append(worker)

    def _stop(self) -> None:
        worker = self._pick()
        worker.signal(signal.SIGSTOP)
        worker.stopped = True

    def _come_back(self) -> None:
        """Whoever was killed or stopped; until all take part."""
        for rank, worker in list(self._workers.items()):
            if worker.stopped:
                worker.signal(signal.SIGCONT)
                worker.stopped = False
            elif not worker.process.is_alive():
                self._start(rank)
        now = {rank: len(worker.reports) for rank, worker in self._workers.items()}
        self._wait(lambda: all(len(worker.reports) > now[rank] for rank, worker in self._workers.items()))

    def _restart(self) -> None:
        port = self._server.port
        for shard in self._server._shards:
            shard.kill()
        self._server.stop()
        self._server = self._new_server(port).start()
        before = self._done
        self._wait(lambda: self._done > before)

    def _start(self, rank: int) -> None:
        self._workers[rank] = Worker(rank, self._server.address, self._rng.randrange(1 << 30))

    def _pick(self) -> Worker:
        """One that the others can do without."""
        self._wait(lambda: sum(worker.member for worker in self._workers.values()) > QUORUM)
        return self._rng.choice([worker for worker in self._workers.values() if worker.member])

    # Where it is

    def _steps(self, worker: Worker) -> int:
        return worker.reports[-1][0] // EVERY if worker.reports else 0

    @property
    def _done(self) -> int:
        return max(self._steps(worker) for worker in (*self._gone, *self._workers.values()))

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            time.sleep(0.02)
            for worker in self._workers.values():
                dead = worker not in self._gone and not worker.process.is_alive()
                if dead and f"rank {worker.rank}" not in self.outcome.died:
                    self.outcome.died.append(f"rank {worker.rank}")
            if self.outcome.died:
                raise AssertionError(f"{', '.join(self.outcome.died)} died; {self.outcome.report()}")
            if time.monotonic() > self._end:
                done = {rank: self._steps(worker) for rank, worker in self._workers.items()}
                for worker in self._workers.values():
                    worker.signal(signal.SIGUSR1)  # to say where they are
                time.sleep(1)
                raise AssertionError(f"no more time; rounds by rank: {done}; {dict(self.outcome.events)}")


def at_random(rounds: int, seed: int) -> list[str]:
    """What happens in a long run: something every few rounds, and everyone comes back after it."""
    rng = random.Random(seed)
    happen = [rng.choices(["kill", "stop", "restart"], [4, 4, 1])[0] for _ in range(rounds // 8)]
    return [event for each in happen for event in ((each, "come_back") if each != "restart" else (each,))]


def main(*arguments: str) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", action="store_true")
    add_option(parser)
    options = parser.parse_args(arguments)
    chaos = Chaos(options.rounds, options.seconds, options.seed, lambda text: print(text, flush=True))
    outcome = chaos.run([] if options.calm else at_random(options.rounds, options.seed))
    print(outcome.report())
    figures: dict[str, Any] = {"rounds": outcome.rounds, "compared": outcome.compared, "different": outcome.different}
    figures |= {"loss": outcome.loss, "seconds": outcome.seconds, **outcome.events}
    Record(options.json, seed=options.seed).add(benchmark="sites chaos", calm=options.calm, **figures)
    return 1 if outcome.different else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
