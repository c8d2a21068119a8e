"""A job at one shard: its workers' connections, its rounds, and its work, done in order."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sumwire.aggregate.protocol import HISTORY
from sumwire.aggregate.server.job_aggregator import JobAggregator
from sumwire.aggregate.server.rack import UPSTREAM
from sumwire.aggregate.server.round import Send

if TYPE_CHECKING:
    from sumwire.aggregate.server.connection import Connection
    from sumwire.aggregate.server.uplink import Uplink

_log = logging.getLogger(__name__)

HEAVY = 1 << 18
"""Bytes: work on this many or more leaves the event loop."""
BATCH = 256
"""Pieces of light work that a thread does before the event loop hears of them."""


@dataclass
class Job:
    """The workers of one job, and their rounds. Nothing is shared between jobs."""

    name: str
    aggregator: JobAggregator
    serial: Serial
    connections: dict[int, Connection] = field(default_factory=dict)
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells workers whether this is the job that they knew."""
    gone_in: int = 0
    """Bytes of connections that are no more."""
    gone_out: int = 0
    ticking: bool = False
    """Whether its clock waits for other work."""
    begun: bool = False
    """Whether a worker was welcomed to it: a rack's workers wait until upstream has welcomed the rack."""
    idle_since: float | None = None
    """Since when no worker is connected."""
    uplink: Uplink | None = None
    """To the upstream server, if this one is a rack."""
    _report: dict[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether all workers are gone, so that whoever comes begins anew."""
        return self.begun and not self.connections

    @property
    def next_round(self) -> int:
        """Where a worker that has just begun goes on; 0 if there were no rounds yet."""
        upstream = 0 if self.uplink is None or self.uplink.welcome is None else self.uplink.welcome.next_round
        return self.aggregator.next_round or upstream

    @property
    def upstream_timeout(self) -> float:
        """Seconds after which the upstream server gives a round up, beyond those of this one."""
        return 0.0 if self.uplink is None or self.uplink.welcome is None else self.uplink.welcome.timeout

    def report(self) -> dict[str, Any]:
        """What was done so far; while a thread is at work on it, what was done before."""
        if not self.serial.busy or not self._report:
            self._report = self._fresh_report()
        return self._report

    def _fresh_report(self) -> dict[str, Any]:
        aggregator = self.aggregator
        return {
            "finished": aggregator.finished,
            "failed": aggregator.failed,
            "duplicates": aggregator.duplicates,
            "late": aggregator.late,
            "open": aggregator.open_rounds,
            "held": aggregator.held,
            "connected": sorted(self.connections),
            "bytes_in": self.gone_in + sum(c.bytes_in for c in self.connections.values()),
            "bytes_out": self.gone_out + sum(c.bytes_out for c in self.connections.values()),
            **aggregator.statistics.report(),
        }

    def deliver(self, sends: list[Send], max_queued: int) -> None:
        for send in sends:
            if self.uplink is not None and UPSTREAM in send.ranks:
                self.uplink.send(send)
            for rank in send.ranks:
                connection = self.connections.get(rank)
                if connection is None:
                    continue  # it asks again when it is back
                connection.send(*send.pieces)
                if send.place is not None and connection.queued:
                    connection.backlog.append((connection.bytes_out + connection.queued, send.place))
                if connection.queued > max_queued:
                    _log.warning("job %s: worker %d reads too slowly, it is cut off", self.name, rank)
                    connection.abort()

    def cut_off_stragglers(self, floor: int) -> None:
        """End connections that have not read results of rounds which are forgotten: they would keep their memory."""
        for rank, connection in list(self.connections.items()):
            backlog = connection.backlog
            while backlog and backlog[0][0] <= connection.bytes_out:
                backlog.popleft()
            if backlog and backlog[0][1] <= floor:
                _log.warning(
                    "job %s: worker %d has not read results of %d rounds, it is cut off", self.name, rank, HISTORY
                )
                connection.abort()


@dataclass
class _Task:
    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    nbytes: int
    result: Any = None
    error: Exception | None = None

    def do(self) -> None:
        try:
            self.result = self.work()
        except Exception as error:
            self.error = error

    def report(self) -> None:
        if self.error is None:
            self.done(self.result)
        else:
            self.failed(self.error)


class Serial:
    """One job's work: light pieces run at once, heavy ones in a thread, so that other jobs and the clock go on.

    `work` may run in a thread, one piece at a time; `done` and `failed` run in the event loop.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._waiting: deque[_Task] = deque()
        self.busy = False
        self._closed = False

    def close(self) -> None:
        """Do nothing more."""
        self._closed = True
        self._waiting.clear()

    def run(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        *,
        nbytes: int = 0,
    ) -> None:
        """Do this after all that was asked for before; at once, if nothing is in progress and it is light."""
        if self._closed:
            return
        task = _Task(work, done, failed, nbytes)
        if not self.busy and nbytes < HEAVY:
            task.do()
            task.report()
            return
        self._waiting.append(task)
        if not self.busy:
            self._start()

    def _start(self) -> None:
        """Give a thread what waits: up to the first heavy piece, or many light ones."""
        batch: list[_Task] = []
        while self._waiting and len(batch) < BATCH and not (batch and batch[-1].nbytes >= HEAVY):
            batch.append(self._waiting.popleft())
        self.busy = True
        future = asyncio.get_running_loop().run_in_executor(self._pool, _do_all, batch)
        future.add_done_callback(lambda ended: self._ended(batch, ended))

    def _ended(self, batch: list[_Task], ended: asyncio.Future[None]) -> None:
        if self._closed or ended.cancelled():
            return
        try:
            for task in batch:
                task.report()
        finally:
            self.busy = False
            if self._waiting:
                self._start()


def _do_all(batch: list[_Task]) -> None:
    for task in batch:
        task.do()
