"""What a server shows of itself over HTTP: /metrics, /healthz, /stats, and a live page at /.

A request is small, answered once, and the connection closed. Nobody can be slow at others' cost: whoever has been
connected for longest makes room for new ones.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib import metadata, resources
from ipaddress import ip_address

from sumwire.aggregate.server.statistics import Watched, problems, summary
from sumwire.errors import ConfigError, install_hint

_log = logging.getLogger(__name__)

MAX_REQUEST = 8192
"""Bytes of a request line and its headers."""
MAX_CONNECTIONS = 64
PATIENCE = 10.0
"""Seconds for a whole request and its answer."""
FOREIGN = "this server is not called that: connect by address, or start it with --http-name NAME"

_HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class Answer:
    """A response: its body is whole."""

    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    policy: str = "default-src 'none'; frame-ancestors 'none'"

    def pack(self, *, head: bool) -> bytes:
        """As it is sent; of a HEAD, without the body."""
        headers = {
            **_HEADERS,
            "Content-Type": self.kind,
            "Content-Length": str(len(self.body)),
            "Content-Security-Policy": self.policy,
        }
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", *(f"{k}: {v}" for k, v in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + (b"" if head else self.body)


def _plain(status: HTTPStatus, text: str = "") -> Answer:
    return Answer(status, (text or status.phrase).encode() + b"\n")


def _json(status: HTTPStatus, value: object) -> Answer:
    return Answer(status, json.dumps(value).encode() + b"\n", "application/json")


class StatusPages:
    """Shows a server over HTTP, on a thread of its own."""

    def __init__(self, server: Watched, host: str = "127.0.0.1", port: int = 0, names: Sequence[str] = ()) -> None:
        if not 0 <= port <= 65535:
            raise ConfigError(f"http_port={port} is not in 0..65535")
        self._server, self._host, self.port = server, host, port
        own = ("localhost", socket.gethostname(), host, *names)
        self._names = frozenset(name.lower() for name in own)
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._page = Answer(HTTPStatus.OK, b"")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end = asyncio.Event()

    @property
    def url(self) -> str:
        """Of the live page."""
        host = "127.0.0.1" if self._host in ("", "0.0.0.0") else self._host
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"

    def start(self) -> None:
        """Listen, and answer until `stop`."""
        self._page = _page()
        sock = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._host, self.port))
        except OSError as error:
            sock.close()
            raise ConfigError(f"cannot show the server on {self._host}, http_port={self.port}: {error}") from None
        self.port = sock.getsockname()[1]
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(sock, ready)), name="sumwire-http", daemon=True
        )
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """Cut all connections and stop listening."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
        self._thread = self._loop = None

    async def _run(self, sock: socket.socket, ready: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        listening = await asyncio.start_server(self._connected, sock=sock, limit=MAX_REQUEST)
        ready.set()
        await self._end.wait()
        listening.close()
        for writer in self._open:
            writer.transport.abort()
        await listening.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            next(iter(self._open)).transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(PATIENCE):
                writer.transport.set_write_buffer_limits(high=0)  # so that drain waits until all is sent
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE).pack(head=False)
        match = re.match(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]\r\n", request)
        if match is None:
            return _plain(HTTPStatus.BAD_REQUEST).pack(head=False)
        method, target = (group.decode() for group in match.groups())
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED).pack(head=False)
        path = target.partition("?")[0]
        if path in ("/", "/stats") and not self._is_mine(request):
            return _plain(HTTPStatus.MISDIRECTED_REQUEST, FOREIGN).pack(head=False)
        try:
            answer = self._route(path)
        except Exception:  # a bug here must not end what is watched
            _log.exception("%s %s", method, target)
            answer = _plain(HTTPStatus.INTERNAL_SERVER_ERROR)
        return answer.pack(head=method == "HEAD")

    def _is_mine(self, request: bytes) -> bool:
        """Whether a browser that sent this was told our address, not somebody's name that now points here.

        Such a name would make a page of theirs, in the browser of somebody who may reach us, a page of ours.
        """
        found = re.search(rb"\r\nhost:[ \t]*([^\r\n]*?)(?::\d*)?[ \t]*\r\n", request, re.IGNORECASE)
        if found is None:
            return True  # no browser: they all say it
        name = found[1].decode("latin-1").lower()
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return name in self._names
        return True

    def _route(self, path: str) -> Answer:
        if path == "/":
            return self._page
        if path == "/stats":
            return _json(HTTPStatus.OK, summary(self._server))
        if path == "/healthz":
            wrong = list(problems(self._server).values())
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            return _json(status, {"healthy": not wrong, "problems": wrong})
        if path == "/metrics":
            return self._metrics()
        return _plain(HTTPStatus.NOT_FOUND, "there are /, /stats, /metrics and /healthz")

    def _metrics(self) -> Answer:
        try:
            from sumwire.aggregate.server import exposition
        except ModuleNotFoundError:
            return _plain(HTTPStatus.NOT_IMPLEMENTED, f"/metrics needs prometheus-client: {install_hint('server')}")
        return Answer(HTTPStatus.OK, exposition.expose(self._server, _version()), exposition.CONTENT_TYPE)


def _version() -> str:
    try:
        return metadata.version("sumwire")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def _page() -> Answer:
    """The live page. Its policy allows its own script and style by their hashes, and nothing else."""
    body = resources.files("sumwire.aggregate.server").joinpath("page.html").read_text("utf-8")
    policy = ["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    for tag in ("script", "style"):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", body, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        policy.append(f"{tag}-src " + " ".join(f"'sha256-{digest}'" for digest in hashes))
    policy.append("frame-ancestors 'none'")
    return Answer(HTTPStatus.OK, body.encode(), "text/html; charset=utf-8", "; ".join(policy))
