"""How a job's rounds end, and what a job may use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sumwire.aggregate.protocol import HISTORY
from sumwire.codec.algebra import MAX_WORKERS
from sumwire.errors import ConfigError

MAX_FAMILIES = 64
MAX_OPENED = 4 * HISTORY
"""Rounds in flight that one worker may have begun."""
MAX_OPEN = 1024
"""Rounds that may be in flight at once."""
MAX_ENDED = 1 << 14
"""Rounds that ended with few workers, of which is kept that they are over."""


@dataclass(frozen=True)
class Rules:
    """How a job's rounds end."""

    workers: int
    quorum: int | None = None
    """Workers that a round waits for; all, if None."""
    deadline: float | None = None
    """Seconds after which a stage of a round goes on with those who are there."""
    timeout: float = 60.0
    """Seconds without an arrival after which a round that cannot go on fails."""
    scale_cap: float | None = None
    """How many times the median of workers' scales a Lattice's joined ones may be; any, if None."""

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ConfigError(f"workers={self.workers} is not in 1..{MAX_WORKERS}")
        if self.quorum is not None and not 1 <= self.quorum <= self.workers:
            raise ConfigError(f"quorum={self.quorum} is not in 1..{self.workers}, the number of workers")
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(f"deadline={self.deadline} is not a number of seconds above 0")
        if not self.timeout > 0:
            raise ConfigError(f"timeout={self.timeout} is not a number of seconds above 0")
        if self.scale_cap is not None and not 1 <= self.scale_cap < math.inf:
            raise ConfigError(f"scale_cap={self.scale_cap} is not a finite number of at least 1, times the median")

    @property
    def needed(self) -> int:
        """Workers that a round waits for."""
        return self.workers if self.quorum is None else self.quorum

    @property
    def least(self) -> int:
        """Workers without which a round is lost."""
        return self.needed if self.deadline is None else 1
