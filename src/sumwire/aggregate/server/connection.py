"""A worker's connection to one shard: who it is, what it says, and when it has to wait."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from sumwire.aggregate.server.job import Job
from sumwire.aggregate.server.ledger import Ledger, Send
from sumwire.errors import FrameError, SumwireError
from sumwire.wire import control
from sumwire.wire.frame import Frame, parse
from sumwire.wire.header import Header
from sumwire.wire.stream import Stream

if TYPE_CHECKING:
    from sumwire.aggregate.server.service import Service

_log = logging.getLogger(__name__)

GREETING = 10.0
"""Seconds within which a peer must say who it is."""
LINGER = 2.0
"""Seconds that a refused peer has to read why."""
PATIENCE = 0.5
"""Seconds that a frame may wait for memory. It is then thrown away: those of older rounds may be behind it."""


class Connection(Stream):
    """A worker's connection."""

    def __init__(self, service: Service) -> None:
        super().__init__(control.MAX_JSON)  # as much as a stranger may send at once
        self._service = service
        self.job: Job | None = None
        self.rank = -1
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: tuple[Header, float] | None = None
        """A frame for which there is no room, and since when."""
        self._reading = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._service.arrived(self)
        self._timer = asyncio.get_running_loop().call_later(GREETING, self._too_quiet)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._service.gone(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.job is not None:
            self.job.gone_in += self.bytes_in
            self.job.gone_out += self.bytes_out
            self.bytes_in = self.bytes_out = 0
            self._count(0)
            if self.job.connections.get(self.rank) is self:
                del self.job.connections[self.rank]
                _log.info("job %s: worker %d is gone", self.job.name, self.rank)

    def _too_quiet(self) -> None:
        self.refused(FrameError(f"no greeting within {GREETING:g} s"))

    def refused(self, error: SumwireError) -> None:
        who = "a stranger" if self.job is None else f"worker {self.rank} of job {self.job.name}"
        _log.warning("%s is refused: %s", who, error)
        self.say(control.Refused(str(error)[: control.MAX_REASON]))
        self.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER, self.abort)

    # Back-pressure

    def may_read(self, header: Header) -> bool:
        if self.job is None:
            raise FrameError("a frame before the greeting: say hello first")
        if self._fits(header):
            return True
        self._waiting = header, self._service.now()
        return False

    def make_room(self, now: float) -> None:
        """Read on, if what was held back may come now, or has waited for too long."""
        if self._waiting is not None:
            header, since = self._waiting
            if self._fits(header):
                self._waiting = None
                self.read_on()
            elif now - since > PATIENCE:
                self._waiting = None
                self.skip()  # its worker will ask, and send it again

    def _fits(self, header: Header) -> bool:
        assert self.job is not None
        if self.job.ledger.has_room(header.round_id, self.job.reading + header.length):
            self._count(header.length)
            return True
        return False

    def _count(self, reading: int) -> None:
        """So many bytes are about to come in here."""
        assert self.job is not None
        self.job.reading += reading - self._reading
        self._reading = reading

    # What arrives

    def frame_received(self, frame: Frame) -> None:
        assert self.job is not None  # or may_read would have refused it
        self._count(0)
        self._service.deliver(self.job, self.job.ledger.frame(self.rank, frame, self._service.now()))

    def control_received(self, message: control.Control) -> None:
        if isinstance(message, control.Hello):
            self._greet(message)
            return
        if self.job is None:
            raise FrameError(f"{message.word.name} before the greeting: say hello first")
        self._service.deliver(self.job, self._told(self.job.ledger, message, self._service.now()))

    def _told(self, ledger: Ledger, message: control.Control, now: float) -> list[Send]:
        match message:
            case control.Describe():
                ledger.learn(message)
            case control.Measured():
                ledger.tally.measured(message.nmse)
            case control.Agreed():
                return ledger.agreed(self.rank, parse(message.frame), now)
            case control.Abstain():
                return ledger.abstain(self.rank, message, now)
            case control.Expired():
                return ledger.expired(self.rank, message)
            case control.Ask():
                return ledger.ask(self.rank, message.round_id, now)
            case _:
                raise FrameError(f"{message.word.name} is not for an aggregator")
        return []

    def _greet(self, hello: control.Hello) -> None:
        if self.job is not None:
            raise FrameError("hello was said before")
        service = self._service
        self.job = job = service.admit(hello)
        service.strangers.pop(self, None)
        self.rank, self.max_frame = hello.rank, service.options.max_frame
        before = job.connections.get(hello.rank)
        if before is not None:  # half open, or of a process that was restarted
            before.abort()
        job.connections[hello.rank] = self
        _log.info("job %s: worker %d is %s", job.name, hello.rank, "back" if hello.known else "here")
        if self._timer is not None:
            self._timer.cancel()
        sends = job.ledger.greet(hello.rank, hello.position, service.now())
        options, go_on = service.options, job.ledger.next_round
        self.say(control.Welcome(job.incarnation, service.shard, options.shards, options.rules.needed, go_on))
        service.deliver(job, sends)
