"""Aggregators, racks and workers that exchange packets on this machine, and a path between them that loses some."""

from __future__ import annotations

import random
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from sumwire import connect
from sumwire.aggregate.network.aggregator import PacketAggregator
from sumwire.aggregate.network.link import PacketLink
from sumwire.aggregate.network.rack import RackLink
from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.protocol.packet import PacketHeader, PacketKind, keys_of

T = TypeVar("T")
L = TypeVar("L")

SECRET = "a secret of tests"
RACK = 4
"""Workers of each of the two racks of a tree."""


class BadPath:
    """Passes datagrams between one worker and the aggregator; some get lost, come twice, or late."""

    def __init__(self, to: tuple[str, int], *, loss: float, doubled: float, late: float, seed: int) -> None:
        self._to, self._loss, self._doubled, self._late = to, loss, doubled, late
        self._random = random.Random(seed)
        self._front, self._back = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self._front.bind(("127.0.0.1", 0))
        self.port = self._front.getsockname()[1]
        self.lost = 0
        self._worker: Any = None
        self._held: list[tuple[socket.socket, bytes, Any]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            ready, _, _ = select.select([self._front, self._back], [], [], 0.02)
            for held in self._held if not ready else []:
                self._send(*held)
            self._held = [] if not ready else self._held
            for sock in ready:
                data, who = sock.recvfrom(65536)
                if sock is self._front:
                    self._worker = who
                    self._pass(self._back, data, self._to)
                elif self._worker is not None:
                    self._pass(self._front, data, self._worker)

    def _pass(self, sock: socket.socket, data: bytes, to: Any) -> None:
        if self._random.random() < self._loss:
            self.lost += 1
            return
        if self._random.random() < self._late:
            self._held.append((sock, data, to))
            return
        self._send(sock, data, to)
        if self._random.random() < self._doubled:
            self._send(sock, data, to)
        if self._held and self._random.random() < 0.2:
            self._send(*self._held.pop(0))

    @staticmethod
    def _send(sock: socket.socket, data: bytes, to: Any) -> None:
        sock.sendto(data, to)

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._front.close()
        self._back.close()


def job(workers: int, **options: Any) -> JobOptions:
    return JobOptions(**({"number": 0} | options), secret=SECRET, peers=("127.0.0.1",) * workers)


@contextmanager
def aggregating(workers: int, *, mtu: int = 1500, **options: Any) -> Iterator[PacketAggregator]:
    with PacketAggregator([job(workers, **options)], port=0, mtu=mtu) as aggregator:
        yield aggregator


@contextmanager
def linked(
    aggregator: PacketAggregator,
    workers: int,
    *,
    path: dict[str, float] | None = None,
    opened: bool = True,
    **options: Any,
) -> Iterator[list[PacketLink]]:
    """A link of each worker, over a bad path if one is described."""
    with ExitStack() as stack:
        links = []
        for rank in range(workers):
            port = aggregator.port
            if path is not None:
                usual = {"loss": 0.0, "doubled": 0.0, "late": 0.0}
                bad = BadPath(("127.0.0.1", port), **(usual | path), seed=rank)
                stack.callback(bad.close)
                port = bad.port
            usual_options = {"token": SECRET, "timeout": 20.0}
            links.append(PacketLink(f"udp://127.0.0.1:{port}", rank=rank, workers=workers, **(usual_options | options)))
            stack.callback(links[-1].close)
        if opened:
            each(links, lambda link: link.open())
        yield links


def restart(aggregator: PacketAggregator, rank: int) -> None:
    """A second process says HELLO for a worker, which begins a session."""
    before = aggregator.control.session(0)
    body = b'{"nonce": 5}'
    hello = PacketHeader(kind=PacketKind.HELLO, worker=rank, length=len(body), key=keys_of(SECRET)[0], members=9)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(60)
        sock.sendto(hello.pack() + body, ("127.0.0.1", aggregator.port))
        assert PacketHeader.unpack(sock.recv(1 << 16)).kind == PacketKind.WELCOME
    assert aggregator.control.session(0) == before + 1


def each(links: list[L], work: Callable[[L], T]) -> list[T]:
    """What all workers get, at the same time."""
    with ThreadPoolExecutor(len(links)) as pool:
        return list(pool.map(work, links))


@contextmanager
def rack(
    upstream: str,
    first: int,
    *,
    path: dict[str, float] | None = None,
    name: str = "default",
    timeout: float = 20.0,
    down: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[list[RackLink]]:
    """Four of eight workers and what adds for them; totals come in segments, because windows are small."""
    jobs = [job(RACK, number=0, window=8, **options), job(RACK, number=1, window=8, **({"quorum": 1} | (down or {})))]
    with ExitStack() as stack:
        aggregator = stack.enter_context(PacketAggregator(jobs, port=0))
        links = []
        for rank in range(first, first + RACK):
            port = aggregator.port
            if path is not None:
                bad = BadPath(("127.0.0.1", port), **path, seed=rank)
                stack.callback(bad.close)
                port = bad.port
            link = connect(
                f"udp://127.0.0.1:{port}", rank=rank, workers=2 * RACK, ranks=(first, first + RACK - 1),
                upstream=upstream, token=SECRET, timeout=timeout, upstream_options={"job": name, "retry": 0.1},
            )  # fmt: skip
            assert isinstance(link, RackLink)
            links.append(link)
            stack.callback(link.close)
        yield links


@contextmanager
def tree(upstream: str, **options: Any) -> Iterator[list[RackLink]]:
    """A link of each of the eight workers."""
    with rack(upstream, 0, **options) as a, rack(upstream, RACK, **options) as b:
        each([*a, *b], lambda link: link.open())
        yield [*a, *b]
