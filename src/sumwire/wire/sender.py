"""The sending half of a connection.

What is sent is never copied as a whole, and waits here, not in the transport, while the other end is slow.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any

from sumwire.wire import control
from sumwire.wire.control import Control

SLICE = 1 << 18
"""Bytes that the transport is given at once: it copies what the socket does not take."""


class Sender(asyncio.BufferedProtocol):
    """Sends pieces in order, as fast as the other end takes them."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.bytes_out = 0
        self._outbox: deque[memoryview] = deque()
        self._queued = 0
        self._writable = True

    @property
    def queued(self) -> int:
        """Bytes that wait to be sent."""
        return self._queued

    @property
    def undelivered(self) -> int:
        """Bytes that were sent and are still in this process."""
        return self._queued + (0 if self.transport is None else self.transport.get_write_buffer_size())

    @property
    def delivered(self) -> int:
        """Bytes that the operating system has taken."""
        return self.bytes_out + self._queued - self.undelivered

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send these one after the other. They must not change any more."""
        if self.transport is None:
            return
        for piece in pieces:
            view = memoryview(piece).cast("B")
            self._queued += len(view)
            self._outbox.extend(view[at : at + SLICE] for at in range(0, len(view), SLICE))
        self._flush()

    def say(self, message: Control) -> None:
        """Send a control message."""
        self.send(control.to_bytes(message))

    def _flush(self) -> None:
        while self._outbox and self._writable and self.transport is not None and not self.transport.is_closing():
            piece = self._outbox.popleft()
            self._queued -= len(piece)
            self.bytes_out += len(piece)
            self.transport.write(piece)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    # The connection itself

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=SLICE)
        sock = transport.get_extra_info("socket")
        if sock is not None:  # so that a peer which has vanished is found out
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._outbox.clear()
        self._queued = 0

    def close(self) -> None:
        """End the connection, after what the transport has was sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self.transport is not None:
            self.transport.abort()
