"""A stranger's TLS handshake, counted and timed like any stranger: asyncio would let any number wait for a minute."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from sumwire.aggregate.server import connection as greeting
from sumwire.aggregate.server.connection import Connection

if TYPE_CHECKING:
    from sumwire.aggregate.server.service import Service

_log = logging.getLogger(__name__)


class Handshake(asyncio.Protocol):
    """Accepts TCP, then becomes a `Connection` over TLS."""

    def __init__(self, service: Service, context: ssl.SSLContext) -> None:
        self._service, self._context = service, context
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self.peer = "an unknown address"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # what comes is for TLS
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else self.peer
        self._service.arrived(self)
        self._task = asyncio.get_running_loop().create_task(self._negotiate(transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._service.gone(self)

    def abort(self) -> None:
        """Make room for others."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _negotiate(self, transport: asyncio.Transport) -> None:
        connection = Connection(self._service)
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport, connection, self._context, server_side=True, ssl_handshake_timeout=greeting.GREETING
            )
        except (OSError, ssl.SSLError) as error:  # a time-out is a ConnectionAbortedError
            _log.warning("a stranger at %s is refused: TLS failed: %s", self.peer, error)
            transport.abort()
            return
        finally:
            self._service.gone(self)
        if secure is not None and not secure.is_closing():
            connection.connection_made(secure)
            connection.catch_up()  # its greeting may have come with the end of the handshake
