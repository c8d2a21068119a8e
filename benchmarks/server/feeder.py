"""A worker's process whose payload is ready before the clock starts: it sends frames and drops what it gets."""

from __future__ import annotations

import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import sumwire
from benchmarks.server.common import BITS, Task, tensor
from sumwire.wire import control, frame
from sumwire.wire.control import CONTROL_SIZE
from sumwire.wire.frame import describe
from sumwire.wire.header import HEADER_SIZE, MAGIC, Header
from sumwire.wire.limits import Kind

DROP = 1 << 17
"""Bytes that are read at once and dropped: iperf3's default, too."""


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
        hello = control.Hello("default", "", rank, str(rank), workers, position=0, known="")
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
        spans = [codec.parts(size, shard, len(self.wires)) for shard in range(len(self.wires))]
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
