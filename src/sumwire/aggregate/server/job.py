"""A job at one shard: its workers' connections and its rounds; and what all jobs of a server may use."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sumwire.aggregate.server.ledger import Ledger, Rules, Send
from sumwire.errors import ConfigError

if TYPE_CHECKING:
    from sumwire.aggregate.server.connection import Connection

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What all shards of a server have in common."""

    rules: Rules
    token: str = ""
    shards: int = 1
    memory: int = 4 << 30
    """Bytes that a job's rounds may hold at a shard, beside its oldest one: beyond, it is not read from."""
    max_frame: int = 256 << 20
    """Bytes of a frame: parts of a Lattice are smaller, Sketches and the shards of a Sparse are never split."""
    max_queued: int = 1 << 30
    """Bytes that may wait for a slow reader, before it is cut off."""

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= 64:
            raise ConfigError(f"shards={self.shards} is not in 1..64")
        for name in ("memory", "max_frame", "max_queued"):
            if getattr(self, name) < 1 << 16:
                raise ConfigError(f"{name}={getattr(self, name)} is less than 64 KiB")


@dataclass
class Job:
    """The workers of one job, and their rounds. Nothing is shared between jobs."""

    name: str
    ledger: Ledger
    connections: dict[int, Connection] = field(default_factory=dict)
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells workers whether this is the job that they knew."""
    gone_in: int = 0
    """Bytes of connections that are no more."""
    gone_out: int = 0
    reading: int = 0
    """Bytes of frames that are on their way in."""

    def report(self) -> dict[str, Any]:
        ledger = self.ledger
        return {
            "finished": ledger.finished,
            "failed": ledger.failed,
            "duplicates": ledger.duplicates,
            "late": ledger.late,
            "open": ledger.open_rounds,
            "held": ledger.held,
            "connected": sorted(self.connections),
            "bytes_in": self.gone_in + sum(c.bytes_in for c in self.connections.values()),
            "bytes_out": self.gone_out + sum(c.bytes_out for c in self.connections.values()),
            **ledger.tally.report(),
        }

    def deliver(self, sends: list[Send], max_queued: int) -> None:
        for send in sends:
            for rank in send.ranks:
                connection = self.connections.get(rank)
                if connection is None:
                    continue  # it asks again when it is back
                connection.send(*send.pieces)
                if connection.queued > max_queued:
                    _log.warning("job %s: worker %d reads too slowly, it is cut off", self.name, rank)
                    connection.abort()
