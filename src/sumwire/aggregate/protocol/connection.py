"""A connection to one shard of a server, of a worker or a rack: greets, and comes back when it was cut."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from sumwire.errors import ConfigError, RoundError, SumwireError
from sumwire.wire import control
from sumwire.wire.frame import Frame
from sumwire.wire.limits import MAX_BODY
from sumwire.wire.stream import Stream

DEFAULT_PORT = 4650
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between attempts to connect."""
REFUSALS = 3
"""In a row: the server means it."""
SILENCE = 10
"""Questions that may stay without an answer."""


class Owner(Protocol):
    """Who gets to know what arrives."""

    def welcomed(self, shard: int, welcome: control.Welcome, again: bool) -> None: ...
    def told(self, shard: int, message: control.Control) -> None: ...
    def got(self, shard: int, frame: Frame) -> None: ...
    def fail_all(self, error: SumwireError) -> None: ...


@dataclass(frozen=True)
class Address:
    """Where shards are: the first at `port`, the others at the ports after it."""

    host: str
    port: int
    tls: ssl.SSLContext | None = field(default=None, repr=False)


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port", "host", "[::1]:port".

    >>> parse_address("10.0.0.7:4700"), parse_address("server"), parse_address("[::1]:80")
    (('10.0.0.7', 4700), ('server', 4650), ('::1', 80))
    """
    host, colon, port = address.rpartition(":")
    if not colon or (address.startswith("[") and address.endswith("]")):
        host, port = address, str(DEFAULT_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536 or not host:
        raise ConfigError(f'address {address!r} is not host:port: pass "10.0.0.7:4650" or "server", say')
    return host.strip("[]"), int(port)


class _ShardStream(Stream):
    def __init__(self, peer: ShardConnection) -> None:
        super().__init__(MAX_BODY)
        self._peer = peer
        self.lost = asyncio.get_running_loop().create_future()
        self.why: object = "it ended the connection"

    def control_received(self, message: control.Control) -> None:
        self._peer.told(message)

    def frame_received(self, frame: Frame) -> None:
        self._peer.got(frame)

    def refused(self, error: SumwireError) -> None:
        self._peer.refused(f"it sends what cannot be read ({error})")
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.why = error or self.why
        if not self.lost.done():
            self.lost.set_result(None)


class ShardConnection:
    """Keeps a connection to one shard for as long as the link is open."""

    def __init__(
        self,
        owner: Owner,
        address: Address,
        shard: int,
        hello: Callable[[str], control.Hello],
        timeout: float,
        retry: float,
    ) -> None:
        self._owner, self._shard = owner, shard
        self._address, self._hello, self._timeout, self._retry = address, hello, timeout, retry
        self._stream: _ShardStream | None = None
        self._greeted = asyncio.Event()
        self._incarnation = ""
        self._refusals = 0
        self._heard, self._moved = 0.0, (0, 0)
        self.ready: asyncio.Future[control.Welcome] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep())

    # Sending

    def send(self, pieces: list[bytes | memoryview]) -> int:
        """Send, if the shard listens; if not, the owner sends it again when it does. Returns the bytes sent."""
        if self._stream is None or not self._greeted.is_set():
            return 0
        self._stream.send(*pieces)
        return sum(map(len, pieces))

    def ask(self, round_id: int) -> None:
        """Ask for a round. A shard that has not answered for long is connected to again: it may have vanished."""
        stream, now = self._stream, asyncio.get_running_loop().time()
        if stream is None or not self._greeted.is_set():
            return
        moved = (stream.bytes_in, stream.bytes_out if stream.queued else 0)
        if moved != self._moved:
            self._heard, self._moved = now, moved
        elif now - self._heard > SILENCE * self._retry:
            stream.abort()
            return
        stream.say(control.Ask(round_id))

    async def drain(self, patience: float) -> None:
        """Wait until this process holds nothing any more of what was sent; whoever does not read it is cut off."""
        stream = self._stream
        if stream is None:
            return
        end = stream.delivered + stream.undelivered
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while stream is self._stream and stream.undelivered and stream.delivered < end:
                    await asyncio.sleep(0.001)
                return
        stream.abort()

    def cut(self) -> None:
        """Drop the connection; it is made again. For tests."""
        if self._stream is not None:
            self._stream.abort()

    # What arrives

    def got(self, frame: Frame) -> None:
        self._refusals = 0
        self._owner.got(self._shard, frame)

    def told(self, message: control.Control) -> None:
        if isinstance(message, control.Welcome):
            again = self._incarnation not in ("", message.incarnation)
            self._incarnation = message.incarnation
            self._heard, self._moved = asyncio.get_running_loop().time(), (0, 0)
            self._greeted.set()
            if not self.ready.done():
                self.ready.set_result(message)
            self._owner.welcomed(self._shard, message, again)
        elif isinstance(message, control.Refused):
            self.refused(message.reason)
        elif isinstance(message, control.Ping):
            if self._stream is not None:
                self._stream.say(control.Pong())
        else:
            self._owner.told(self._shard, message)

    def refused(self, reason: str) -> None:
        self._refusals += 1
        if self._refusals >= REFUSALS:
            self._owner.fail_all(RoundError(f"the server refuses worker {self._hello('').rank}: {reason}"))

    # The connection itself

    async def close(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.close()
            await asyncio.wait([stream.lost], timeout=1)
            stream.abort()
        # Again until it has ended: a cancellation can get lost in whatever it awaits.
        while not self._keeper.done():
            self._keeper.cancel()
            await asyncio.wait([self._keeper], timeout=0.1)

    async def _keep(self) -> None:
        """Connect, wait until the connection is lost, connect again."""
        loop, where = asyncio.get_running_loop(), self._address
        down_since, pause = loop.time(), FIRST_PAUSE
        while True:
            try:
                why = await self._converse()
            except (OSError, ValueError) as error:  # ValueError: a host that cannot be one
                why = error
            if self._greeted.is_set():
                self._greeted.clear()
                down_since, pause = loop.time(), FIRST_PAUSE
            hopeless = isinstance(why, ssl.SSLCertVerificationError | ValueError)
            if hopeless or loop.time() - down_since > self._timeout:
                self._owner.fail_all(
                    RoundError(
                        f"no server at {where.host}:{where.port + self._shard} for {self._timeout:g} s ({why}): "
                        "is it running, and are host, port and TLS right?"
                    )
                )
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _converse(self) -> object:
        """One connection, from its beginning to its end; says why it ended."""
        loop, where = asyncio.get_running_loop(), self._address
        connecting = loop.create_connection(
            lambda: _ShardStream(self), where.host, where.port + self._shard, ssl=where.tls
        )
        # Not wait_for, which can swallow a cancellation that comes as the connection does.
        async with asyncio.timeout(max(SILENCE * self._retry, 1.0)):
            _, stream = await connecting
        self._stream = stream
        try:
            stream.say(self._hello(self._incarnation))
            greeting = loop.create_task(self._greeted.wait())
            await asyncio.wait([stream.lost, greeting], timeout=SILENCE * self._retry, return_when="FIRST_COMPLETED")
            greeting.cancel()
            if not self._greeted.is_set() and not stream.lost.done():
                return "it does not answer"
            await stream.lost
            return stream.why
        finally:
            stream.abort()
            self._stream = None
