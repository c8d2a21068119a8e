"""Servers and peers for tests, in one event loop."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np

from sumwire import AsyncLink
from sumwire.aggregate.server.options import Options, Rules, Upstream
from sumwire.aggregate.server.server import _listen
from sumwire.aggregate.server.shard import Shard
from sumwire.wire import control
from sumwire.wire.frame import Frame, parse, parse_header
from sumwire.wire.header import HEADER_SIZE

RETRY = 0.1
"""Seconds: tests do not wait long."""


class Site:
    """The shards of a server, which can be stopped and started again at the same ports."""

    def __init__(self, options: Options, tls: ssl.SSLContext | None = None) -> None:
        self.options, self._tls = options, tls
        self.port = 0
        self.shards: list[Shard] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        sockets = _listen("127.0.0.1", self.port, self.options.shards)
        self.port = sockets[0].getsockname()[1]
        self.shards = [Shard(self.options, number) for number in range(self.options.shards)]
        for shard, sock in zip(self.shards, sockets, strict=True):
            sock.setblocking(False)
            await shard.start(sock, self._tls)

    async def stop(self) -> None:
        for shard in self.shards:
            await shard.stop()

    @property
    def aggregator(self) -> Any:
        """Of the only job, at the first shard."""
        (job,) = self.shards[0].jobs.values()
        return job.aggregator


@asynccontextmanager
async def serving(workers: int, *, tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[Site]:
    names = ("quorum", "deadline", "timeout", "scale_cap", "ranks")
    rules = {name: options.pop(name) for name in names if name in options}
    site = Site(Options(Rules(workers, **({"timeout": 60.0} | rules)), **options), tls)
    await site.start()
    try:
        yield site
    finally:
        await site.stop()


@asynccontextmanager
async def racked(root: Site, workers: int, racks: int, **options: Any) -> AsyncIterator[list[Site]]:
    """Racks below a server, each with as many workers."""
    each = workers // racks
    async with AsyncExitStack() as stack:
        upstream = Upstream("127.0.0.1", root.port)
        shards = {"shards": root.options.shards}
        yield [
            await stack.enter_async_context(
                serving(workers, upstream=upstream, ranks=(lo, lo + each), **(shards | options))
            )
            for lo in range(0, workers, each)
        ]


@asynccontextmanager
async def linked(site: Site, workers: int, ranks: Any = None, **options: Any) -> AsyncIterator[list[AsyncLink]]:
    """A link for each rank."""
    async with AsyncExitStack() as stack:
        links = [
            AsyncLink(site.address, rank=rank, workers=workers, **({"timeout": 60.0, "retry": RETRY} | options))
            for rank in (range(workers) if ranks is None else ranks)
        ]
        yield [await stack.enter_async_context(link) for link in links]


def tensors(workers: int, round_id: int, size: int, density: float = 1.0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng([round_id, size])
    return [(rng.standard_normal(size) * (rng.random(size) < density)).astype(np.float32) for _ in range(workers)]


class Peer:
    """Somebody who says what tests tell them to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def at(site: Site, shard: int = 0) -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", site.port + shard))

    @staticmethod
    async def greeted(site: Site, rank: int, workers: int, **fields: Any) -> Peer:
        peer = await Peer.at(site)
        peer.say(hello(rank, workers, **fields))
        assert isinstance(await peer.next(), control.Welcome)
        return peer

    def say(self, message: control.Control) -> None:
        self.send(control.to_bytes(message))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def next(self, timeout: float = 60.0) -> control.Control | Frame | None:
        """The next message; None, if the connection is over."""
        try:
            return await asyncio.wait_for(self._next(), timeout)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _next(self) -> control.Control | Frame:
        front = await self.reader.readexactly(4)
        if front == control.MAGIC:
            front += await self.reader.readexactly(control.CONTROL_SIZE - 4)
            return control.read(front + await self.reader.readexactly(control.read_length(front)))
        front += await self.reader.readexactly(HEADER_SIZE - 4)
        return parse(front + await self.reader.readexactly(parse_header(front).length))

    async def until(self, kind: type) -> Any:
        """The next message of a kind."""
        while True:
            message = await self.next()
            if message is None or isinstance(message, kind):
                return message

    def close(self) -> None:
        self.writer.transport.abort()


def hello(rank: int, workers: int, **fields: Any) -> control.Hello:
    usual = {"job": "default", "token": "", "rank": rank, "process": secrets.token_hex(8), "workers": workers}
    usual |= {"position": 0, "known": ""}
    return control.Hello(**(usual | fields))


def small_buffers(sock: socket.socket) -> None:
    """So that a peer that does not read is noticed soon."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
