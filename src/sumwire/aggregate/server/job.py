"""A job at one shard: its workers' connections and its rounds; and what all jobs of a server may use."""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sumwire.aggregate.protocol.rounds import HISTORY
from sumwire.aggregate.server.aggregator import JobAggregator
from sumwire.aggregate.server.round import Send
from sumwire.aggregate.server.rules import Rules
from sumwire.aggregate.server.serial import Serial
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.errors import ConfigError
from sumwire.wire.limits import MAX_SIZE

if TYPE_CHECKING:
    from sumwire.aggregate.server.connection import Connection

_log = logging.getLogger(__name__)

FIRST_ROUNDS = 1 << 32
"""First rounds of jobs are below: enough that nobody can prepare for one, and still a number that people can read."""


@dataclass(frozen=True)
class Options:
    """What all shards of a server have in common."""

    rules: Rules
    token: str = field(default="", repr=False)
    shards: int = 1
    memory: int = 4 << 30
    """Bytes that rounds may hold at a shard, all jobs together: beyond, workers are not read from."""
    max_size: int = 1 << 32
    """Coordinates of a tensor."""
    max_frame: int = 256 << 20
    """Bytes of a frame: parts of a Lattice are smaller, Sketches and the shards of a Sparse are never split."""
    max_queued: int = 1 << 30
    """Bytes that may wait for a slow reader, before it is cut off."""
    start: int = 0
    """The round at which jobs begin to count."""
    salt: int = 0
    """Not 0: they begin anywhere, each job at a round that follows from this and its name."""

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= 64:
            raise ConfigError(f"shards={self.shards} is not in 1..64")
        for name in ("memory", "max_frame", "max_queued"):
            if getattr(self, name) < 1 << 16:
                raise ConfigError(f"{name}={getattr(self, name)} bytes is less than 64 KiB: allow at least 65536")
        if not 1 <= self.max_size <= MAX_SIZE:
            raise ConfigError(f"max_size={self.max_size} is not in 1..{MAX_SIZE} coordinates")
        if not 0 <= self.start < FOLLOW_UP:
            raise ConfigError(f"first_round={self.start} is not in 0..2**63-1")

    def first_round(self, job: str) -> int:
        """Where a job begins to count: the same at all shards, and known to nobody before."""
        if not self.salt:
            return self.start
        digest = hashlib.blake2b(job.encode(), digest_size=8, key=self.salt.to_bytes(16, "little")).digest()
        return int.from_bytes(digest, "little") % FIRST_ROUNDS


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
    idle_since: float | None = None
    """Since when no worker is connected."""
    _report: dict[str, Any] = field(default_factory=dict)

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
