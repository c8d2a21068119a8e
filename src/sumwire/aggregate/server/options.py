"""What a server is told: how rounds end (`Rules`), and what all its shards have in common (`Options`)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

from sumwire.aggregate.protocol import HISTORY
from sumwire.codec.algebra import FOLLOW_UP, MAX_WORKERS
from sumwire.errors import ConfigError
from sumwire.wire.limits import MAX_SIZE

MAX_FAMILIES = 64
MAX_OPENED = 4 * HISTORY
"""Rounds in flight that one worker may have begun."""
MAX_OPEN = 1024
"""Rounds that may be in flight at once."""
MAX_ENDED = 1 << 14
"""Rounds that ended with few workers, of which is kept that they are over."""

FIRST_ROUNDS = 1 << 32
"""First rounds of jobs are below: enough that nobody can prepare for one, and still a number that people can read."""


@dataclass(frozen=True)
class Rules:
    """How a job's rounds end."""

    workers: int
    """Of a job, wherever they are connected."""
    quorum: int | None = None
    """Workers of this server that a round waits for; all, if None."""
    deadline: float | None = None
    """Seconds after which a stage of a round goes on with those who are there."""
    timeout: float = 60.0
    """Seconds without an arrival after which a round that cannot go on fails."""
    scale_cap: float | None = None
    """How many times the median of workers' scales a Lattice's joined ones may be; any, if None."""
    ranks: tuple[int, int] | None = None
    """Ranks lo..hi (hi excluded) whose workers this server adds for, if it is a rack; all, if None."""
    linger: float = 0.0
    """Seconds that a round with its quorum waits, after each arrival, for further workers that are connected.

    Not for those that have sent nothing of the last few rounds."""

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ConfigError(f"workers={self.workers} is not in 1..{MAX_WORKERS}")
        if self.ranks is not None and not 0 <= self.ranks[0] < self.ranks[1] <= self.workers:
            raise ConfigError(
                f"ranks {self.ranks[0]}..{self.ranks[1] - 1} are not some of 0..{self.workers - 1}: workers is the "
                "number of all workers of a job, not of those of this rack"
            )
        if self.quorum is not None and not 1 <= self.quorum <= len(self.members):
            raise ConfigError(
                f"quorum={self.quorum} is not in 1..{len(self.members)}, the number of workers of this server"
            )
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(f"deadline={self.deadline} is not a number of seconds above 0")
        if not self.timeout > 0:
            raise ConfigError(f"timeout={self.timeout} is not a number of seconds above 0")
        if not 0 <= self.linger < math.inf:
            raise ConfigError(f"linger={self.linger} is not a finite number of seconds, 0 or more")
        if self.linger and self.quorum is None:
            raise ConfigError("linger is for rounds that have their quorum, and there is none: set quorum, too")
        if self.scale_cap is not None and not 1 <= self.scale_cap < math.inf:
            raise ConfigError(f"scale_cap={self.scale_cap} is not a finite number of at least 1, times the median")

    @property
    def members(self) -> range:
        """Ranks of the workers that this server adds for."""
        return range(self.workers) if self.ranks is None else range(*self.ranks)

    @property
    def needed(self) -> int:
        """Workers that a round waits for."""
        return len(self.members) if self.quorum is None else self.quorum

    @property
    def least(self) -> int:
        """Workers without which a round is lost."""
        return self.needed if self.deadline is None else 1


@dataclass(frozen=True)
class Upstream:
    """The server of which a rack is a worker: it adds what racks have added."""

    host: str
    port: int
    token: str = field(default="", repr=False)
    tls: tuple[str, str | None, str | None] | None = None
    """Files, as `worker_context` takes them."""


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
    upstream: Upstream | None = None
    """Where this server's sums go, if it is a rack."""

    def __post_init__(self) -> None:
        if (self.upstream is None) != (self.rules.ranks is None):
            raise ConfigError("upstream and ranks belong together: a rack needs both, any other server has neither")
        if self.upstream is not None and self.rules.scale_cap is not None:
            raise ConfigError(
                "scale_cap needs the scales of all workers, and a rack has only those of its own: omit it here and "
                "upstream, or let all workers connect to one server"
            )
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
