"""How much memory a shard's rounds may hold, all jobs together."""

from __future__ import annotations

import threading
from enum import Enum


class Urgency(Enum):
    """What a frame is needed for, and which share of the memory it may fill.

    Rounds complete in order, so only the oldest ones free memory: some of it is kept for a job's oldest round, and the
    rest for the oldest round of all, which can therefore always go on.
    """

    LATER = 0.5
    OLDEST_OF_JOB = 0.875
    OLDEST_OF_ALL = 1.0


class Memory:
    """Counts bytes against a limit. Threads may share it.

    >>> memory = Memory(1000)
    >>> memory.charge(600)
    >>> memory.has_room(100, Urgency.LATER), memory.has_room(100, Urgency.OLDEST_OF_JOB)
    (False, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()

    def has_room(self, nbytes: int, urgency: Urgency) -> bool:
        return self.used + nbytes <= self.limit * urgency.value

    def charge(self, nbytes: int) -> None:
        """Count bytes that are in use from now on; a negative number gives them back."""
        with self._lock:
            self.used += nbytes
