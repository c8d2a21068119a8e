"""One shard of the parameter server: its port, its jobs, and the clock."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sumwire.aggregate.protocol import place
from sumwire.aggregate.server.connection import Connection, Handshake
from sumwire.aggregate.server.job import Job, Serial
from sumwire.aggregate.server.job_aggregator import JobAggregator
from sumwire.aggregate.server.memory import Memory, Urgency
from sumwire.aggregate.server.options import Options
from sumwire.aggregate.server.rack import RackAggregator
from sumwire.aggregate.server.round import Send
from sumwire.aggregate.server.uplink import Uplink
from sumwire.errors import ConfigError, MismatchError
from sumwire.wire import control

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

MAX_JOBS = 64
MAX_NAME = 256
MAX_STRANGERS = 256
"""Connections of peers that have not said who they are, at most. Beyond, the oldest is cut off."""
FEWEST_STRANGERS = 4
RESERVED = 32
"""Descriptors that a process has open beside its connections."""
THREADS = 4
"""That add large payloads, beside the event loop."""
IDLE = 60.0
"""Seconds for which a job without workers is kept, at least: they may all have lost the server at once."""
TICK = 0.05


class Shard:
    """Joins and adds for any number of jobs, on one port."""

    def __init__(self, options: Options, number: int = 0) -> None:
        self.options, self.number = options, number
        self.jobs: dict[str, Job] = {}
        self.connections: set[Connection] = set()
        self.strangers: dict[Connection | Handshake, None] = {}
        """Those that have not said who they are, the oldest first."""
        self.max_strangers = max_strangers(options.rules.workers)
        self.memory = Memory(options.memory)
        self._pool = ThreadPoolExecutor(THREADS, "sumwire-add")
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None
        self.closing: set[asyncio.Task[None]] = set()
        """Connections to upstream that are being ended."""
        self._began = self.now()

    @staticmethod
    def now() -> float:
        return time.monotonic()

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve whoever connects to this socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: self._protocol(tls), sock=listening, backlog=1024)
        self._ticking = asyncio.create_task(self._tick())

    def _protocol(self, tls: ssl.SSLContext | None) -> asyncio.BaseProtocol:
        return Connection(self) if tls is None else Handshake(self, tls)

    def report(self) -> dict[str, Any]:
        """What was done so far, in plain numbers."""
        seconds = self.now() - self._began
        return {
            "shard": self.number,
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
        for stranger in list(self.strangers):
            stranger.abort()
        if self._server is not None:
            await self._server.wait_closed()
        for job in self.jobs.values():
            job.serial.close()
            if job.uplink is not None:
                job.uplink.close()
        if self.closing:
            await asyncio.wait(self.closing, timeout=2)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def admit(self, hello: control.Hello) -> Job:
        """The job that a worker may take part in."""
        if not 1 <= len(hello.job) <= MAX_NAME or not hello.job.isprintable():
            raise ConfigError(
                f"job={hello.job[:MAX_NAME]!r} is not 1..{MAX_NAME} printable characters: pass another name"
            )
        if not hmac.compare_digest(hello.token.encode(), self.options.token.encode()):
            raise MismatchError("the token is wrong: give all workers the token of the server (token=...)")
        rules = self.options.rules
        if hello.workers != rules.workers:
            raise MismatchError(
                f"the worker was given workers={hello.workers}, the server --workers {rules.workers}: give both the "
                "same number"
            )
        members, last = rules.members, hello.rank + hello.span - 1
        if not hello.span or hello.rank not in members or last not in members:
            raise MismatchError(
                f"rank {hello.rank} is not in {members[0]}..{members[-1]}: the server has {len(members)} workers"
                if hello.span == 1 and self.options.upstream is None
                else f"ranks {hello.rank}..{last} are not in {members[0]}..{members[-1]}, those of this server: let "
                "workers connect to the rack whose --ranks have theirs"
            )
        if hello.span > 1 and rules.scale_cap is not None:
            raise MismatchError("this server caps scales by their median, and a rack has joined those of its workers")
        job = self.jobs.get(hello.job)
        if job is None or (job.over and not hello.known):  # or all are gone, and somebody begins anew
            if job is not None:
                self.forget(job)
            if len(self.jobs) >= MAX_JOBS:
                for each in [each for each in self.jobs.values() if each.over]:
                    self.forget(each)
            if len(self.jobs) >= MAX_JOBS:
                raise ConfigError(f"{MAX_JOBS} jobs are running, which is the limit: use another server")
            job = self.jobs[hello.job] = self._new_job(hello.job)
        overlapping = [
            rank for rank, each in job.connections.items()
            if rank != hello.rank and rank <= last and hello.rank < rank + each.span
        ]  # fmt: skip
        if overlapping:
            raise MismatchError(
                f"ranks {hello.rank}..{last} overlap those of the peer with rank {overlapping[0]}: a worker connects "
                "to its rack or to the root, and racks have ranks of their own"
            )
        return job

    def _new_job(self, name: str) -> Job:
        options = self.options
        first, serial = options.first_round(name), Serial(self._pool)
        about = (options.rules, self.number, options.shards, self.memory, name, first)
        if options.upstream is None:
            job = Job(name, JobAggregator(*about), serial, idle_since=self.now())
        else:
            rack = RackAggregator(*about)
            job = Job(name, rack, serial, idle_since=self.now())
            job.uplink = Uplink(self, job, rack, options.upstream)
        job.report()
        return job

    def forget(self, job: Job) -> None:
        """A job is over."""
        if self.jobs.get(job.name) is job:
            del self.jobs[job.name]
            aggregator = job.aggregator
            job.serial.run(aggregator.close, lambda _: None, _unexpected(job.name))
            if job.uplink is not None:
                job.uplink.close()

    def has_room(self, job: Job, round_id: int | None, nbytes: int) -> bool:
        """Whether there is room for `nbytes` more bytes of a round."""
        oldest, urgency = job.aggregator.oldest, Urgency.LATER
        if oldest is None or (round_id is not None and place(round_id) <= oldest[1]):
            urgency = Urgency.OLDEST_OF_JOB
            others = [each.aggregator.oldest for each in self.jobs.values()]  # which threads may change meanwhile
            began = [other[0] for other in others if other is not None]
            if not began or (oldest is not None and oldest[0] <= min(began)):
                urgency = Urgency.OLDEST_OF_ALL
        return self.memory.has_room(nbytes, urgency)

    def deliver(self, job: Job, sends: list[Send]) -> None:
        """Send, and read on where memory has become free."""
        job.deliver(sends, min(self.options.max_queued, self.options.memory))
        if sends:
            self._make_room(job)

    def arrived(self, stranger: Connection | Handshake) -> None:
        """A stranger has connected."""
        if isinstance(stranger, Connection):
            self.connections.add(stranger)
        self.strangers[stranger] = None
        if len(self.strangers) > self.max_strangers:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            _log.warning("a stranger at %s makes room: %d others wait to be greeted", oldest.peer, self.max_strangers)
            oldest.abort()

    def gone(self, stranger: Connection | Handshake) -> None:
        """A connection is no more."""
        if isinstance(stranger, Connection):
            self.connections.discard(stranger)
        self.strangers.pop(stranger, None)

    def left(self, job: Job, rank: int) -> None:
        """A worker is gone."""
        aggregator = job.aggregator
        job.serial.run(lambda: aggregator.leave(rank), lambda _: None, _unexpected(job.name))
        if not job.connections:
            job.idle_since = self.now()

    def _make_room(self, job: Job) -> None:
        now = self.now()
        for connection in list(job.connections.values()):
            connection.make_room(now)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            now = self.now()
            for job in list(self.jobs.values()):
                try:
                    self._tick_job(job, now)
                except Exception:  # one job's trouble must not stop the clock of the others
                    _log.exception("job %s: an error that should not happen", job.name)

    def _tick_job(self, job: Job, now: float) -> None:
        if job.idle_since is not None and now - job.idle_since > max(IDLE, self.options.rules.timeout):
            self.forget(job)  # its results may hold much memory, and nobody comes for them
            return
        aggregator = job.aggregator

        def done(sends: list[Send]) -> None:
            job.ticking = False
            self.deliver(job, sends)

        def failed(error: Exception) -> None:
            job.ticking = False
            _unexpected(job.name)(error)

        if not job.ticking:
            job.ticking = True
            nbytes = aggregator.held if aggregator.rules.deadline is not None else 0  # which a deadline may add up now
            job.serial.run(lambda: aggregator.tick(self.now()), done, failed, nbytes=nbytes)
        self._make_room(job)
        job.cut_off_stragglers(aggregator.floor)


def _unexpected(name: str) -> Callable[[Exception], None]:
    def log(error: Exception) -> None:
        _log.error("job %s: an error that should not happen", name, exc_info=error)

    return log


def max_strangers(workers: int) -> int:
    """Connections of strangers that leave descriptors for workers, and for what else a process has open."""
    if resource is None:
        return MAX_STRANGERS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    spare = (limit - workers - RESERVED) // 2
    return max(FEWEST_STRANGERS, min(MAX_STRANGERS, spare))
