"""The parameter server: one process per shard, and this one that watches over them."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

from sumwire.aggregate.protocol.connection import parse_address
from sumwire.aggregate.protocol.tls import server_context, worker_context
from sumwire.aggregate.server.http import StatusPages
from sumwire.aggregate.server.options import Options, Rules, Upstream
from sumwire.aggregate.server.process import check_log, configure_log, settings
from sumwire.errors import ConfigError, RoundError

_log = logging.getLogger(__name__)

_ATTEMPTS = 32
"""To find ports that follow each other, when any will do; to get those that a server before this one still has."""
_PAUSE = 0.1
"""Seconds between attempts to get ports that are taken."""


class Server:
    """Joins terms and adds payloads for the workers of any number of jobs; never decompresses.

    Law: a round's sum holds each worker's payload at most once, whatever is lost, sent again or comes late. Shards
    listen on `port` and the ports after it, each in a process of its own; a tensor's blocks are spread over them. A job
    is over when all its workers are gone: whoever comes then begins it anew.
    Cost: one pass over payloads and lanes; memory for the payloads of the rounds in flight.

    >>> import numpy as np, sumwire
    >>> with sumwire.Server(workers=1) as server, sumwire.connect(server.address, rank=0, workers=1) as link:
    ...     bool(abs(link.average(np.ones(1000, np.float32)).mean() - 1) < 0.1)
    True

    workers    of every job
    host       to listen on (127.0.0.1: this machine alone)
    port       of the first shard; 0 picks free ones
    shards     processes
    quorum     workers that a round waits for (default: all)
    linger     seconds that a round with its quorum waits for further workers that are connected (default 0)
    deadline   seconds after which a stage of a round goes on with those who are there
    timeout    seconds after which a round that cannot go on fails, with an error that names who is missing
    scale_cap  how many times the median of workers' scales a Lattice's may be (default: any): see docs/server.md
    first_round where jobs begin to count their rounds (default: at random, so that nobody knows their random numbers
               before): a number makes runs repeatable
    token      that workers must show
    tls        (certificate, key, authority): files; with an authority, workers need certificates, too
    upstream   "host:port" of the server that adds this one's sums to those of others: this one is a rack
    ranks      (lo, hi): this rack's workers have ranks lo..hi-1; `workers` is then the number of all in the job
    upstream_token  the upstream server's
    upstream_tls    (authority, certificate, key): files, the last two or None; TLS towards the upstream server
    memory     bytes that the rounds of all jobs may hold at a shard, before workers are made to wait
    max_size   coordinates of a tensor
    max_frame  bytes of a frame: of a Sketch, or of a worker's share of a Sparse tensor (a Lattice's are small)
    http_port  of /metrics, /healthz, /stats and the live page; 0 picks a free one (default: none)
    http_host  to show them on: anybody who can connect may read them
    http_names further names by which browsers may call the page
    log_format of the shards, on standard error: "text" or "json"
    log_level  of what is in it: "info" (who comes and goes), "warning" (what goes wrong) or "error"
    """

    def __init__(
        self,
        workers: int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        shards: int = 1,
        quorum: int | None = None,
        linger: float = 0.0,
        deadline: float | None = None,
        timeout: float = 60.0,
        scale_cap: float | None = None,
        first_round: int | None = None,
        token: str = "",
        tls: tuple[str | Path, str | Path, str | Path | None] | None = None,
        memory: int = 4 << 30,
        max_size: int = 1 << 32,
        max_frame: int = 256 << 20,
        upstream: str | None = None,
        ranks: tuple[int, int] | None = None,
        upstream_token: str = "",
        upstream_tls: tuple[str | Path, str | Path | None, str | Path | None] | None = None,
        http_port: int | None = None,
        http_host: str = "127.0.0.1",
        http_names: Sequence[str] = (),
        log_format: str = "text",
        log_level: str = "warning",
    ) -> None:
        self.options = Options(
            Rules(workers, quorum, deadline, timeout, scale_cap, ranks, linger),
            token=token,
            shards=shards,
            memory=memory,
            max_size=max_size,
            max_frame=max_frame,
            start=first_round or 0,
            salt=0 if first_round is not None else secrets.randbits(64) or 1,
            upstream=None if upstream is None else _upstream(upstream, upstream_token, upstream_tls),
        )
        if not 0 <= port <= 65536 - shards:
            raise ConfigError(f"port={port} is not in 0..{65536 - shards}: every shard needs one")
        if tls is not None:
            server_context(*tls)  # so that a wrong file is named here, not in a process of its own
        self._tls = None if tls is None else [None if path is None else str(path) for path in tls]
        self._host, self._wish = host, port
        self._shards: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self.port = port
        self.reports: dict[int, dict[str, Any]] = {}
        """The last report of every shard."""
        self.earlier: dict[int, dict[str, Any]] = {}
        """The one before."""
        self.heard: dict[int, float] = {}
        """When it came, by the monotonic clock."""
        self.status_pages = None if http_port is None else StatusPages(self, http_host, http_port, http_names)
        self._log = check_log(log_format, log_level)
        self._news = threading.Event()

    @property
    def address(self) -> str:
        """What `connect` takes."""
        host = "127.0.0.1" if self._host in ("", "0.0.0.0") else self._host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def start(self) -> Self:
        """Listen, and start the shards."""
        if not self.options.token and not (self._tls and self._tls[2]) and not _is_loopback(self._host):
            _log.warning(
                "listening on %s without a token: whoever can connect may take part in every job; set SUMWIRE_TOKEN or "
                "--token-file, or demand certificates", self._host or "all addresses",
            )  # fmt: skip
        listening = _listen(self._host, self._wish, self.options.shards)
        self.port = listening[0].getsockname()[1]
        try:
            if self.status_pages is not None:
                self.status_pages.start()
            for shard, sock in enumerate(listening):
                self._shards.append(self._spawn(shard, sock))
        except BaseException:
            self.stop()
            raise
        finally:
            for sock in listening:
                sock.close()
        return self

    def _spawn(self, shard: int, sock: socket.socket) -> subprocess.Popen[str]:
        # -P: nothing in the directory that this happens to be started in is ours to run.
        command = [sys.executable, "-P", "-c", "from sumwire.aggregate.server.process import main; main()"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=(sock.fileno(),)
        )
        assert process.stdin is not None
        process.stdin.write(settings(self.options, shard, sock.fileno(), self._tls, self._log) + "\n")
        process.stdin.flush()
        reader = threading.Thread(target=self._read, args=(shard, process), name=f"sumwire-shard-{shard}", daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    def _read(self, shard: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            report = json.loads(line)
            self.earlier[shard] = self.reports.get(shard, report)
            self.reports[shard], self.heard[shard] = report, time.monotonic()
            self._news.set()

    def wait(self, watch: Callable[[], bool] = lambda: False) -> None:
        """Until `watch` is true; raises when a shard ends by itself."""
        while not watch():
            for shard, process in enumerate(self._shards):
                if process.poll() is not None:
                    raise RoundError(f"shard {shard} (pid {process.pid}) ended with {process.returncode}: see its log")
            self._news.wait(0.5)
            self._news.clear()

    def stop(self) -> None:
        """End all shards."""
        if self.status_pages is not None:
            self.status_pages.stop()
        for process in self._shards:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._shards:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join()
        for process in self._shards:
            if process.stdout is not None:
                process.stdout.close()
        self._shards, self._readers = [], []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def read_token(path: str) -> str:
    """The token in a file: its first line, so that an editor's newline does not matter."""
    token = Path(path).read_text("utf-8").partition("\n")[0].strip()
    if not token:
        raise ConfigError(f"{path} has no token in its first line: write it there, and nothing else")
    return token


def run(*, log_format: str, log_level: str, **options: Any) -> None:
    """Serve until SIGINT or SIGTERM."""
    configure_log(log_format, log_level)
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda signum, _: told.append(signum))
    with Server(log_format=log_format, log_level=log_level, **options) as server:
        shards = server.options.shards
        ports = f"port {server.port}" if shards == 1 else f"ports {server.port}..{server.port + shards - 1}"
        rules = server.options.rules
        print(f"sumwire serve: {ports}, {_whom(server.options)}, a round waits for {rules.needed}", flush=True)
        if server.status_pages is not None:
            print(f"sumwire serve: {server.status_pages.url} shows it live", flush=True)
        server.wait(lambda: bool(told))
    print("sumwire serve: ended", flush=True)


def _whom(options: Options) -> str:
    rules, upstream = options.rules, options.upstream
    if upstream is None:
        return f"{rules.workers} workers"
    members = rules.members
    return f"workers {members[0]}..{members[-1]} of {rules.workers}, upstream at {upstream.host}:{upstream.port}"


def _upstream(
    address: str, token: str, tls: tuple[str | Path, str | Path | None, str | Path | None] | None
) -> Upstream:
    if tls is None:
        return Upstream(*parse_address(address), token)
    worker_context(*tls)  # so that a wrong file is named here, not in a process of its own
    authority, certificate, key = tls
    files = str(authority), None if certificate is None else str(certificate), None if key is None else str(key)
    return Upstream(*parse_address(address), token, files)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int, shards: int) -> list[socket.socket]:
    """Sockets on ports that follow each other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in range(_ATTEMPTS):
        sockets: list[socket.socket] = []
        try:
            for shard in range(shards):
                sock = socket.socket(family, socket.SOCK_STREAM)
                sockets.append(sock)
                if os.name == "posix":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                first = sockets[0].getsockname()[1]
                sock.bind((host, port if not shard else first + shard))
                sock.listen(1024)
            return sockets
        except (OSError, OverflowError) as error:
            for sock in sockets:
                sock.close()
            taken = getattr(error, "errno", 0) == errno.EADDRINUSE
            if (port and not taken) or attempt == _ATTEMPTS - 1:
                wanted = f"ports {port}..{port + shards - 1}" if port else f"{shards} free ports in a row"
                raise ConfigError(f"cannot listen on {host}, {wanted}: {error}") from None
            if port:  # a server that was killed leaves shards behind that are about to end
                time.sleep(_PAUSE)
    raise AssertionError
