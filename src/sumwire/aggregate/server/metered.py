"""A stream that is charged for what it reads, and waits while the server has no memory for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sumwire.aggregate.server.job import Job
from sumwire.aggregate.server.round import TERMS_IN_MEMORY
from sumwire.errors import FrameError
from sumwire.wire import control
from sumwire.wire.header import Header
from sumwire.wire.stream import Stream

if TYPE_CHECKING:
    from sumwire.aggregate.server.service import Service

PATIENCE = 0.5
"""Seconds that a frame may wait for memory. It is then thrown away: those of older rounds may be behind it."""


class MeteredStream(Stream):
    """A worker's connection, as far as memory goes."""

    def __init__(self, service: Service) -> None:
        super().__init__(control.MAX_JSON)  # as much as a stranger may send at once
        self._service = service
        self.job: Job | None = None
        self._waiting: tuple[Callable[[], bool], float] | None = None
        """Whether a message may come for which there was no room, and since when it waits."""
        self._reading = 0
        """Bytes that the message on its way in is charged for."""

    def may_read(self, header: Header) -> bool:
        job = self.job
        if job is None:
            raise FrameError("a frame before the greeting: say hello first")
        limit = self._service.options.max_size
        if header.size > limit:
            raise FrameError(
                f"a tensor of {header.size} coordinates is over this server's limit of {limit}: cut it, or start the "
                "server with a larger --max-size"
            )
        return self._let_in(lambda: self._fits(header.round_id, job.aggregator.cost(header)))

    def may_read_control(self, word: control.Word, length: int) -> bool:
        if word is not control.Word.AGREED:
            return True
        return self._let_in(lambda: self._fits(None, TERMS_IN_MEMORY * length))

    def _let_in(self, fits: Callable[[], bool]) -> bool:
        if fits():
            return True
        self._waiting = fits, self._service.now()
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
        if self._service.has_room(self.job, round_id, nbytes):
            self._count(nbytes)
            return True
        return False

    def _count(self, reading: int) -> None:
        """Be charged for this much that is about to come in here."""
        self._service.memory.charge(reading - self._reading)
        self._reading = reading
