"""One shard of the parameter server: its port, its jobs, and the clock."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
import time
from typing import Any

from sumwire.aggregate.server.connection import Connection
from sumwire.aggregate.server.job import Job, Options
from sumwire.aggregate.server.ledger import Ledger, Send
from sumwire.errors import ConfigError, MismatchError
from sumwire.wire import control

__all__ = ["Job", "Options", "Service"]

_log = logging.getLogger(__name__)

MAX_JOBS = 64
MAX_NAME = 256
MAX_STRANGERS = 1024
"""Connections of peers that have not said who they are. Beyond, the oldest is cut off."""
TICK = 0.05


class Service:
    """Joins and adds for any number of jobs, on one port."""

    def __init__(self, options: Options, shard: int = 0) -> None:
        self.options, self.shard = options, shard
        self.jobs: dict[str, Job] = {}
        self.connections: set[Connection] = set()
        self.strangers: dict[Connection, None] = {}
        """Those of them that have not said who they are, the oldest first."""
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._began = self.now()

    @staticmethod
    def now() -> float:
        return time.monotonic()

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve whoever connects to this socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=listening, ssl=tls, backlog=1024)
        self._ticking = asyncio.create_task(self._tick())

    def report(self) -> dict[str, Any]:
        """What was done so far, in plain numbers."""
        seconds = self.now() - self._began
        return {
            "shard": self.shard,
            "seconds": seconds,
            "jobs": {name: job.report() for name, job in self.jobs.items()},
        }

    async def stop(self) -> None:
        """Cut all connections and stop listening."""
        if self._ticking is not None:
            self._ticking.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()

    def admit(self, hello: control.Hello) -> Job:
        """The job that a worker may take part in."""
        if not 1 <= len(hello.job) <= MAX_NAME or not hello.job.isprintable():
            raise ConfigError(f"a job's name has 1..{MAX_NAME} printable characters")
        if not hmac.compare_digest(hello.token.encode(), self.options.token.encode()):
            raise MismatchError("the token is wrong: give all workers the server's")
        rules = self.options.rules
        if hello.workers != rules.workers:
            raise MismatchError(f"the worker counts {hello.workers} workers, the server {rules.workers}")
        if hello.rank >= rules.workers:
            raise MismatchError(f"rank {hello.rank} is not in 0..{rules.workers - 1}")
        job = self.jobs.get(hello.job)
        if job is None or (not job.connections and not hello.known):  # or all are gone, and somebody begins anew
            self.jobs.pop(hello.job, None)
            if len(self.jobs) >= MAX_JOBS:
                self._forget_idle_jobs()
            if len(self.jobs) >= MAX_JOBS:
                raise ConfigError(f"{MAX_JOBS} jobs are under way, which is the limit: use another server")
            job = self.jobs[hello.job] = Job(
                hello.job, Ledger(rules, self.shard, self.options.shards, self.options.memory, hello.job)
            )
        return job

    def deliver(self, job: Job, sends: list[Send]) -> None:
        """Send, and read on where memory has become free."""
        job.deliver(sends, self.options.max_queued)
        if sends:
            self._make_room(job)

    def arrived(self, connection: Connection) -> None:
        """A stranger has connected."""
        self.connections.add(connection)
        self.strangers[connection] = None
        if len(self.strangers) > MAX_STRANGERS:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.abort()

    def gone(self, connection: Connection) -> None:
        """A connection is no more."""
        self.connections.discard(connection)
        self.strangers.pop(connection, None)

    def _make_room(self, job: Job) -> None:
        now = self.now()
        for connection in list(job.connections.values()):
            connection.make_room(now)

    def _forget_idle_jobs(self) -> None:
        for name in [name for name, job in self.jobs.items() if not job.connections]:
            del self.jobs[name]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            for job in list(self.jobs.values()):
                try:
                    self.deliver(job, job.ledger.tick(self.now()))
                    self._make_room(job)
                except Exception:  # one job's trouble must not stop the clock of the others
                    _log.exception("job %s: an error that should not happen", job.name)
