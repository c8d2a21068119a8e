"""The parameter server: throughput beside iperf3, CPU beside a server that decompresses, latency of many workers.

    python -m benchmarks.server throughput --size 25000000 --rounds 16 --runs 7
    python -m benchmarks.server cpu --size 25000000 --runs 15
    python -m benchmarks.server latency --workers 4,64,1000 --rounds 200

throughput: workers, a process each, have encoded before the clock starts and do not decode; they send frames and drop
what they get, so that it is the server that is measured. iperf3 moves its bytes by the same number of connections,
up and down at the same time, in turns with them. cpu: the same frames through the ledger alone, without sockets.
latency: a few processes are all workers; every sum is compared, byte by byte, with one made here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import queue
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from operator import or_
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import sumwire
from benchmarks.decompress_server import DecompressingPart, DecompressServer, install
from sumwire.aggregate.server.ledger import Ledger
from sumwire.aggregate.server.part import Part
from sumwire.aggregate.server.rules import HISTORY, Rules
from sumwire.aggregate.server.spans import spans_of
from sumwire.codec.lattice_parts import LatticePayload
from sumwire.errors import SumwireError
from sumwire.kernels import threads
from sumwire.wire import control, frame
from sumwire.wire.codecs import describe
from sumwire.wire.control import CONTROL_SIZE
from sumwire.wire.header import HEADER_SIZE, MAGIC, Header
from sumwire.wire.limits import MAX_BODY, Kind
from sumwire.wire.stream import Stream

BITS = 4
TICK = os.sysconf("SC_CLK_TCK")
DROP = 1 << 17
"""Bytes that are read at once and dropped: iperf3's default, too."""
LIMIT = 600.0
"""Seconds, until a run is given up."""
DECOMPRESSING = "decompress, add, recompress"
LINK = "whole `link.average`"

spawn = multiprocessing.get_context("spawn")


def tensor(rank: int, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(rank).standard_normal(size, np.float32)


def span(values: list[float], form: str) -> str:
    return f"{median(values):{form}} [{min(values):{form}} - {max(values):{form}}]"


def cpu_seconds(pids: list[int]) -> tuple[float, float]:
    """User and system time of processes, so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) for stat in stats) / TICK, sum(int(stat[12]) for stat in stats) / TICK


def children() -> set[int]:
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


# Throughput: what a worker's process does


class Wire:
    """A connection to one shard, blocking. A thread sends what is queued; what is read is dropped."""

    def __init__(self, host: str, port: int, hello: control.Hello) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outbox: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self._scratch = memoryview(bytearray(DROP))
        self.sent = self.received = 0
        self._socket.sendall(control.to_bytes(hello))
        welcome = control.read(self._control(b""))
        if not isinstance(welcome, control.Welcome):
            raise RuntimeError(f"no welcome: {welcome}")
        self.shards = welcome.shards
        threading.Thread(target=self._send, daemon=True).start()

    def send(self, pieces: list[Any]) -> None:
        self._outbox.put(pieces)

    def _send(self) -> None:
        while True:
            for piece in self._outbox.get():
                self._socket.sendall(piece)
                self.sent += len(piece)

    def next_frame(self, *, keep: bool = False) -> tuple[Header, bytes]:
        """The next frame; its body is dropped unless wanted."""
        while (front := bytes(self._read(len(MAGIC)))) != MAGIC:
            message = control.read(self._control(front))
            if not isinstance(message, control.Agreed):  # which the yardstick sends with each part
                raise RuntimeError(f"the server says {message}")
        front += self._read(HEADER_SIZE - len(front))
        header = frame.parse_header(front)
        return header, front + self._read(header.length) if keep else self._drop(header.length)

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        at = 0
        while at < length:
            at += self._receive(memoryview(data)[at:])
        return data

    def _drop(self, length: int) -> bytes:
        while length:
            length -= self._receive(self._scratch[:length])
        return b""

    def _receive(self, view: memoryview) -> int:
        got = self._socket.recv_into(view)
        if not got:
            raise RuntimeError("the server has cut the connection")
        self.received += got
        return got

    def _control(self, start: bytes) -> bytes:
        front = start + self._read(CONTROL_SIZE - len(start))
        return front + self._read(control.read_length(front))


class Feeder:
    """A worker whose payload is ready: begins `window` rounds at once, and the next when one is complete."""

    def __init__(self, address: str, rank: int, workers: int, size: int) -> None:
        host, port = address.split(":")
        hello = control.Hello("default", "", rank, workers, position=0, known="")
        self.wires = [Wire(host, int(port), hello)]
        self.wires += [Wire(host, int(port) + shard, hello) for shard in range(1, self.wires[0].shards)]
        codec = sumwire.Lattice(workers, BITS)
        for wire in self.wires:
            wire.send([control.to_bytes(describe(codec))])
        x = tensor(rank, size)
        self.proposed = codec.propose(x)
        self.wires[0].send(frame.buffers(self.proposed, round_id=0))
        _, agreed = self.wires[0].next_frame(keep=True)
        self.terms = frame.parse(agreed).terms(codec, (size,))
        payload = codec.encode(x, self.terms, rank=rank)
        spans = [spans_of(codec, size, shard, len(self.wires)) for shard in range(len(self.wires))]
        self.parts = [[payload.part(lo, hi) for lo, hi in found] for found in spans]
        self._ready: dict[int, tuple[list[Any], list[list[Any]]]] = {}
        self._missing: dict[int, int] = {}
        self._ahead = iter(range(0))
        self._lock = threading.Lock()
        for wire, pieces, own in zip(self.wires, self._upload(0), self.parts, strict=True):
            wire.send(pieces)
            for _ in own:
                while wire.next_frame()[0].kind is Kind.TERMS:
                    pass

    @property
    def moved(self) -> int:
        return sum(wire.sent + wire.received for wire in self.wires)

    def prepare(self, rounds: range) -> None:
        """Make the frames of these rounds. Bodies are shared: only headers, with their CRCs, are made anew."""
        self._ready = {r: (frame.buffers(self.proposed, round_id=r), self._upload(r)) for r in rounds}
        self._missing = dict.fromkeys(rounds, sum(map(len, self.parts)))

    def _upload(self, round_id: int) -> list[list[Any]]:
        agreed = control.to_bytes(control.Agreed(frame.to_bytes(self.terms, round_id=round_id)))
        pieces = [[p for own in found for p in frame.buffers(replace(own, round_id=round_id))] for found in self.parts]
        return [[agreed, *found] if shard else found for shard, found in enumerate(pieces)]

    def run(self, rounds: range, window: int) -> None:
        self._ahead = iter(rounds)
        for _ in range(window):
            self._begin()
        reading = [
            partial(self._read, wire, len(rounds) * len(own)) for wire, own in zip(self.wires, self.parts, strict=True)
        ]
        with ThreadPoolExecutor(len(reading)) as pool:
            for done in [pool.submit(read) for read in reading]:
                done.result()

    def _begin(self) -> None:
        round_id = next(self._ahead, None)
        if round_id is not None:
            self.wires[0].send(self._ready[round_id][0])

    def _read(self, wire: Wire, parts: int) -> None:
        while parts:
            header, _ = wire.next_frame()
            with self._lock:
                if header.kind is Kind.TERMS:
                    _, uploads = self._ready.pop(header.round_id, ([], []))  # other shards confirm them
                    for other, pieces in zip(self.wires, uploads, strict=False):
                        other.send(pieces)
                    continue
                parts -= 1
                self._missing[header.round_id] -= 1
                if not self._missing[header.round_id]:
                    self._begin()


class Task(NamedTuple):
    """What a worker's process does with a server."""

    address: str
    workers: int
    size: int
    rounds: int
    runs: int
    window: int


def feed(task: Task, rank: int, gate: Any, out: Any) -> None:
    feeder = Feeder(task.address, rank, task.workers, task.size)
    for run in range(-1, task.runs):  # the first one is not counted: memory grows, TCP finds its window
        first = 1 + (run + 1) * task.rounds
        rounds = range(first, first + task.rounds)
        feeder.prepare(rounds)
        gate.wait()
        before = feeder.moved
        feeder.run(rounds, task.window)
        gate.wait()
        out.put(feeder.moved - before)


def average(task: Task, rank: int, gate: Any, out: Any) -> None:
    """Encodes and decodes, as users do."""
    codec, x = sumwire.Lattice(task.workers, BITS), tensor(rank, task.size)
    with sumwire.connect(task.address, rank=rank, workers=task.workers, codec=codec) as link:
        for _ in range(-1, task.runs):
            gate.wait()
            for _ in range(task.rounds):
                link.average(x)
            gate.wait()
            out.put(0)


# Throughput: who runs it all


def guarded(work: Callable[..., None], task: Task, rank: int, gate: Any, out: Any) -> None:
    try:
        work(task, rank, gate, out)
    except BaseException:
        gate.abort()  # nobody need wait for us
        raise


class Run(NamedTuple):
    """Of one contender: bytes through its sockets in both directions, CPU of the server's processes."""

    seconds: float
    bytes: float
    user: float = 0.0
    system: float = 0.0

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds / 1e9


@contextmanager
def crew(server: Any, work: Callable[..., None], task: Task) -> Iterator[Callable[[], Run]]:
    """A server and its workers; each call is a run of so many rounds."""
    before = children()
    with server:
        pids = sorted(children() - before)
        gate, out = spawn.Barrier(task.workers + 1), spawn.Queue()
        task = task._replace(address=server.address)
        workers = [spawn.Process(target=guarded, args=(work, task, rank, gate, out)) for rank in range(task.workers)]
        for worker in workers:
            worker.start()

        def run() -> Run:
            gate.wait(LIMIT)
            start, (user, system) = time.perf_counter(), cpu_seconds(pids)
            gate.wait(LIMIT)
            seconds, (user_then, system_then) = time.perf_counter() - start, cpu_seconds(pids)
            moved = sum(out.get() for _ in workers)
            return Run(seconds, moved, user_then - user, system_then - system)

        try:
            run()
            yield run
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()


@contextmanager
def iperf3(connections: int, seconds: float) -> Iterator[Callable[[], Run]]:
    """What the machine's TCP moves by so many connections in each direction."""
    if shutil.which("iperf3") is None:
        sys.exit("iperf3 was not found: apt-get install iperf3")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    serving = subprocess.Popen(["iperf3", "-s", "-p", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run() -> Run:
        command = ["iperf3", "-c", "127.0.0.1", "-p", port, "-P", str(connections), "--bidir", "-t", f"{seconds:g}"]
        end = json.loads(subprocess.run([*command, "-J"], check=True, capture_output=True).stdout)["end"]
        both = [end["sum_received"], end["sum_received_bidir_reverse"]]
        return Run(1.0, sum(way["bytes"] / way["seconds"] for way in both))

    try:
        time.sleep(0.5)
        yield run
    finally:
        serving.terminate()
        serving.wait()


def throughput(given: argparse.Namespace) -> None:
    workers, size, rounds = given.ranks, given.size, given.rounds
    task = Task("", workers, size, rounds, given.runs, given.window)
    with ExitStack() as stack:
        contenders = {"iperf3": stack.enter_context(iperf3(workers, given.seconds))}
        for shards in (1, 2):
            server = sumwire.Server(workers, shards=shards)
            contenders[f"{shards} shard{'s' * (shards > 1)}"] = stack.enter_context(crew(server, feed, task))
        yardstick = DecompressServer(workers)
        contenders[DECOMPRESSING] = stack.enter_context(crew(yardstick, feed, task))
        whole = task._replace(rounds=max(1, rounds // 4))
        contenders[LINK] = stack.enter_context(crew(sumwire.Server(workers), average, whole))
        runs = [{name: run() for name, run in contenders.items()} for _ in range(given.runs)]
    print(f"\n### {workers} workers, {size:,} coordinates, {BITS} bits, loopback\n")
    print(f"`python -m benchmarks.server {' '.join(sys.argv[1:])}`: median [lowest - highest] of {given.runs} runs of")
    print(f"{rounds} rounds, {given.window} under way at once; iperf3 with -P {workers} --bidir, {given.seconds:g} s\n")
    print("| | GB/s through the server, in + out | of iperf3, % | rounds/s | server CPU, ns a value | user | system |")
    print("|---|---|---|---|---|---|---|")
    for name in contenders:
        own = [run[name] for run in runs]
        cells = [name, span([r.rate for r in own], ".2f"), "", "", "", "", ""]
        count = whole.rounds if name == LINK else rounds
        if name == LINK:
            cells[1] = ""
        elif name != "iperf3":
            cells[2] = span([100 * run[name].rate / run["iperf3"].rate for run in runs], ".0f")
        if name != "iperf3":
            cells[3] = span([count / r.seconds for r in own], ".1f")
            each = 1e9 / (count * workers * size)
            cells[4] = span([each * (r.user + r.system) for r in own], ".2f")
            cells[5] = f"{median(each * r.user for r in own):.2f}"
            cells[6] = f"{median(each * r.system for r in own):.2f}"
        print("| " + " | ".join(cells) + " |")
    print()
    for name in [name for name in contenders if "shard" in name]:
        share = median(run[name].rate / run["iperf3"].rate for run in runs)
        print(f"- The bar, 60 % of iperf3, with {name}: {share:.0%}, **{'met' if share >= 0.6 else 'missed'}**.")
    ratios = [cpu(run[DECOMPRESSING]) / cpu(run["1 shard"]) for run in runs]
    print(f"- CPU of {DECOMPRESSING} / ours, sockets and all: {span(ratios, '.1f')}; {verdict(median(ratios))}.")


def cpu(run: Run) -> float:
    return run.user + run.system


def verdict(ratio: float) -> str:
    return f"the bar, 8 times less, is **{'met' if ratio >= 8 else 'missed'}** by this measure"


# CPU without sockets


class Shard:
    """A shard without sockets, which takes one round after the other. A run is CPU seconds of a round."""

    def __init__(self, codec: sumwire.Lattice, proposals: list[Any], payloads: list[LatticePayload], kind: Any) -> None:
        self._codec, self._kind = codec, kind
        self._proposals, self._payloads = proposals, payloads
        self._ledger = Ledger(Rules(codec.workers))
        self._ledger.learn(describe(codec))
        self._round = 0

    def all_but_sockets(self) -> float:
        """CRCs, checks, sums, frames."""
        install(self._kind)
        self._round, seconds = self._round + 1, 0.0
        items = [(rank, item, frame.buffers(item, round_id=self._round)) for rank, item in enumerate(self._proposals)]
        for payload in self._payloads:
            items.append((payload.rank, payload, frame.buffers(replace(payload, round_id=self._round))))
        for rank, _, pieces in items:
            message = arrived(pieces)
            start = time.process_time()
            self._ledger.frame(rank, frame.parse(message), 0.0)
            seconds += time.process_time() - start
        if self._ledger.finished != self._round:
            raise RuntimeError("the round is not complete")
        return seconds

    def sums_alone(self) -> float:
        """Only what is done with numbers."""
        seconds = 0.0
        for _, same in groupby(self._payloads, lambda payload: payload.lo):
            payloads = [replace(payload, data=np.array(payload.data)) for payload in same]
            part = self._kind(self._codec, payloads[0].lo, payloads[0].hi)
            start = time.process_time()
            for payload in payloads:
                part.add(payload)
            part.recompressed() if isinstance(part, DecompressingPart) else part._fold()
            seconds += time.process_time() - start
        return seconds


def arrived(pieces: list[Any]) -> memoryview:
    """A message in memory of its own, as if it had just been read from a socket."""
    memory = np.empty(sum(len(piece) for piece in pieces), np.uint8)
    at = 0
    for piece in pieces:
        memory[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return memory.data.cast("B")


def cpu_alone(given: argparse.Namespace) -> None:
    workers, size = given.ranks, given.size
    codec = sumwire.Lattice(workers, BITS)
    xs = [tensor(rank, size) for rank in range(workers)]
    proposals = [codec.propose(x) for x in xs]
    terms = reduce(or_, proposals)
    whole = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    payloads = [payload.part(lo, hi) for lo, hi in spans_of(codec, size, 0, 1) for payload in whole]
    shards = [Shard(codec, proposals, payloads, kind) for kind in (Part, DecompressingPart)]
    print(f"\n### CPU without sockets: {workers} workers, {size:,} coordinates, {BITS} bits\n")
    print(f"`python -m benchmarks.server {' '.join(sys.argv[1:])}`: ns a coordinate of a payload, median [lowest -")
    print(f"highest] of {given.runs} runs in turns; {threads.get_threads()} threads, the CPU time of all\n")
    print("| | ours | decompress, add, recompress | ratio |")
    print("|---|---|---|---|")
    ratios = {}
    for name, work in {
        "all but the sockets: CRCs, checks, sums, frames": Shard.all_but_sockets,
        "the sums alone": Shard.sums_alone,
    }.items():
        # As many rounds first as a ledger keeps: memory grows.
        pairs = [[work(shard) for shard in shards] for _ in range(HISTORY + given.runs)][HISTORY:]
        each = 1e9 / (workers * size)
        ours, theirs = ([each * pair[index] for pair in pairs] for index in (0, 1))
        ratios[name] = [b / a for a, b in zip(ours, theirs, strict=True)]
        print(f"| {name} | {span(ours, '.3f')} | {span(theirs, '.3f')} | {span(ratios[name], '.1f')} |")
    print()
    for name, found in ratios.items():
        print(f"- {name}: {median(found):.1f} times less CPU than the yardstick; {verdict(median(found))}.")


# Latency of many workers


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
        return cls(codec, proposals, payloads, b"".join(frame.buffers(codec.add(payloads))[1:]))


class Client(Stream):
    """A worker with a payload that is ready, which goes from round to round."""

    def __init__(self, book: Book, rank: int, rounds: int) -> None:
        super().__init__(MAX_BODY)
        self._book, self._rank, self._rounds = book, rank, rounds
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
        workers = self._book.codec.workers
        self.say(control.Hello("default", "", self._rank, workers, position=0, known=""))
        self.say(describe(self._book.codec))

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
        if received.count != self._book.codec.workers or received.body != self._book.sum:
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
    print(f"\n- The bar, {max(counts):,} connected workers without error: **met**.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    for name, work in {"throughput": throughput, "cpu": cpu_alone, "latency": latency}.items():
        kind = kinds.add_parser(name)
        kind.set_defaults(work=work)
        kind.add_argument("--size", type=int, default=1000 if name == "latency" else 25_000_000, help="coordinates")
        if name == "latency":
            kind.add_argument("--workers", default="4,64,1000")
            kind.add_argument("--processes", type=int, default=4, help="that the workers share")
            kind.add_argument("--rounds", type=int, default=100)
            continue
        kind.add_argument("--ranks", type=int, default=4, help="workers")
        kind.add_argument("--runs", type=int, default=7)
        if name == "throughput":
            kind.add_argument("--rounds", type=int, default=16, help="of a run")
            kind.add_argument("--window", type=int, default=2, help="rounds that a worker has under way at once")
            kind.add_argument("--seconds", type=float, default=3.0, help="that iperf3 runs")
    given = parser.parse_args()
    given.work(given)


if __name__ == "__main__":
    main()
