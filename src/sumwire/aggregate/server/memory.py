"""How much memory a shard's rounds may hold, all jobs together, and streams that wait while there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from sumwire.aggregate.server.round import TERMS_IN_MEMORY
from sumwire.errors import FrameError
from sumwire.wire import control
from sumwire.wire.header import Header
from sumwire.wire.stream import Stream

if TYPE_CHECKING:
    from sumwire.aggregate.server.job import Job
    from sumwire.aggregate.server.shard import Shard

PATIENCE = 0.5
"""Seconds that a frame may wait for memory. It is then thrown away: those of older rounds may be behind it."""


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


class MeteredStream(Stream):
    """A worker's connection, as far as memory goes: charged for what it reads, it waits while there is none for it."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(control.MAX_JSON)  # as much as a stranger may send at once
        self._shard = shard
        self.job: Job | None = None
        self._waiting: tuple[Callable[[], bool], float] | None = None
        """Whether a message may come for which there was no room, and since when it waits."""
        self._reading = 0
        """Bytes that the message on its way in is charged for."""

    def may_read(self, header: Header) -> bool:
        job = self.job
        if job is None:
            raise FrameError("a frame before the greeting: say hello first")
        limit = self._shard.options.max_size
        if header.size > limit:
            raise FrameError(
                f"a tensor of {header.size} coordinates is over this server's limit of {limit}: cut it, or start the "
                "server with a larger --max-size"
            )
        return self._let_in(lambda: self._fits(header.round_id, job.aggregator.cost(header)))

    def may_read_control(self, word: control.Word, length: int) -> bool:
        if word is not control.Word.AGREED:
            return True
        # A byte may be a scale, which has 4 bytes in memory.
        return self._let_in(lambda: self._fits(None, 4 * TERMS_IN_MEMORY * length))

    def _let_in(self, fits: Callable[[], bool]) -> bool:
        if fits():
            return True
        self._waiting = fits, self._shard.now()
        return False

    def make_room(self, now: float) -> None:
        """Read on, if what was held back may come now, or has waited for too long."""
        if self._waiting is not None:
            fits, since = self._waiting
            if fits():
                self._waiting = None
                self.read_on()
            elif now - since > PATIENCE:
                self._waiting = None
                self.skip()  # its worker will ask, and send it again

    def _fits(self, round_id: int | None, nbytes: int) -> bool:
        assert self.job is not None
        if self._shard.has_room(self.job, round_id, nbytes):
            self._count(nbytes)
            return True
        return False

    def _count(self, reading: int) -> None:
        """Be charged for this much that is about to come in here."""
        self._shard.memory.charge(reading - self._reading)
        self._reading = reading
