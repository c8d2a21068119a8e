"""A worker's connection to one shard: who it is, what it says, and when it has to wait; with or without TLS."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sumwire.aggregate.server.job import Job
from sumwire.aggregate.server.memory import MeteredStream
from sumwire.aggregate.server.round import Send
from sumwire.errors import ConfigError, FrameError, SumwireError
from sumwire.wire import control
from sumwire.wire.frame import Frame

if TYPE_CHECKING:
    from sumwire.aggregate.server.shard import Shard

_log = logging.getLogger(__name__)

GREETING = 10.0
"""Seconds within which a peer must say who it is."""
LINGER = 2.0
"""Seconds that a refused peer has to read why."""
MAX_WAITING = 64
"""Messages of a worker that may wait for the aggregator, before no more are read."""
CHALLENGE = 2.0
"""Seconds within which a worker must answer when another process claims its rank."""


class Connection(MeteredStream):
    """A worker's connection."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self.rank = -1
        self.span = 1
        """Ranks that it speaks for, from `rank` on."""
        self.process = ""
        self._since = shard.now()
        self._timer: asyncio.TimerHandle | None = None
        self.backlog: deque[tuple[int, int]] = deque()
        """Results that wait to be sent: where they end, in bytes of the connection, and the place of their round."""
        self._unanswered = 0
        """Messages that wait for the aggregator, or that it is at work on."""
        self._bytes_then = 0
        """That had come in when another process claimed this worker's rank."""
        self._challengers: list[tuple[Connection, control.Hello]] = []
        """Connections of other processes that claim this worker's rank."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._shard.arrived(self)
        self._timer = asyncio.get_running_loop().call_later(GREETING, self._too_quiet)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._shard.gone(self)
        if self._timer is not None:
            self._timer.cancel()
        self._count(0)
        if self.job is not None:
            self.job.gone_in += self.bytes_in
            self.job.gone_out += self.bytes_out
            self.bytes_in = self.bytes_out = 0
            if self.job.connections.get(self.rank) is self:
                del self.job.connections[self.rank]
                self._shard.left(self.job, self.rank)
                _log.info("job %s: worker %d is gone", self.job.name, self.rank)
        challengers, self._challengers = self._challengers, []
        for challenger, hello in challengers:
            challenger.take_over(hello)

    @property
    def peer(self) -> str:
        """Where it comes from, for logs and messages."""
        address = None if self.transport is None else self.transport.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if address else "an unknown address"

    def _too_quiet(self) -> None:
        self.refused(FrameError(f"no greeting within {GREETING:g} s"))

    def refused(self, error: SumwireError) -> None:
        who = "a stranger" if self.job is None else f"worker {self.rank} of job {self.job.name}"
        _log.warning("%s at %s is refused: %s", who, self.peer, error)
        self.say(control.Refused(str(error)[: control.MAX_REASON]))
        self.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER, self.abort)

    # What arrives

    def frame_received(self, frame: Frame) -> None:
        assert self.job is not None  # or may_read would have refused it
        aggregator, rank, now = self.job.aggregator, self.rank, self._shard.now()
        self._run(lambda: aggregator.frame(rank, frame, now), aggregator.work(frame))

    def control_received(self, message: control.Control) -> None:
        if isinstance(message, control.Hello):
            self._greet(message)
            return
        if self.job is None:
            raise FrameError(f"{message.word.name} before the greeting: say hello first")
        if isinstance(message, control.Pong):
            self._alive()
            return
        aggregator, rank, now = self.job.aggregator, self.rank, self._shard.now()
        self._run(lambda: aggregator.told(rank, message, now), self._reading)

    def _run(self, work: Callable[[], list[Send]], nbytes: int) -> None:
        """Let the aggregator do its work, and charge for what came in until it is accounted for there."""
        job, shard, charged = self.job, self._shard, self._reading
        assert job is not None
        self._reading = 0

        def charged_work() -> list[Send]:
            try:
                return work()
            finally:
                shard.memory.charge(-charged)

        def done(sends: list[Send]) -> None:
            self._count_message(-1)
            shard.deliver(job, sends)

        def failed(error: Exception) -> None:
            self._count_message(-1)
            self.cannot_handle(error)

        self._count_message(1)
        job.serial.run(charged_work, done, failed, nbytes=nbytes)

    def _count_message(self, change: int) -> None:
        """Who sends faster than the aggregator works has to wait: what waits here is charged to nobody."""
        self._unanswered += change
        if change > 0 and self._unanswered == MAX_WAITING:
            self.stop()
        elif change < 0 and self._unanswered == MAX_WAITING // 2 and not self.reading:
            self.resume()

    # Who it is

    def _greet(self, hello: control.Hello) -> None:
        if self.job is not None:
            raise FrameError("hello was said before")
        job = self._shard.admit(hello)
        if job.uplink is not None and job.uplink.welcome is None:
            if self._timer is not None:
                self._timer.cancel()
            job.uplink.greet_later(self, hello)
            return
        before = job.connections.get(hello.rank)
        if before is not None and before.process != hello.process:
            before.challenge(self, hello)
            return
        if before is not None:
            before.abort()  # half open: its worker is here again
        self._welcome(job, hello)

    def challenge(self, other: Connection, hello: control.Hello) -> None:
        """Another process claims this worker's rank: is this one still there?"""
        if not self._challengers:
            self._bytes_then = self.bytes_in
            asyncio.get_running_loop().call_later(CHALLENGE, self._no_answer)
        self._challengers.append((other, hello))
        self.say(control.Ping())

    def _alive(self) -> None:
        assert self.job is not None
        challengers, self._challengers = self._challengers, []
        for other, _ in challengers:
            other.refused(
                ConfigError(
                    f"rank {self.rank} of job {self.job.name!r} is taken by another live process, connected from "
                    f"{self.peer} for {self._shard.now() - self._since:.0f} s: give every worker a rank of its own "
                    "(rank=...), and every training a job of its own (job=...)"
                )
            )

    def _no_answer(self) -> None:
        if self._challengers and (self.bytes_in > self._bytes_then or not self.reading):
            self._alive()  # its answer is behind what it sends, or this server does not let it speak
        elif self._challengers:
            _log.warning("worker %d at %s does not answer: another process takes over", self.rank, self.peer)
            self.abort()  # and when it is lost, the challengers take over

    def take_over(self, hello: control.Hello) -> None:
        """The process that had this rank is gone."""
        if self.transport is not None and not self.transport.is_closing():
            self.guarded(lambda: self._greet(hello))

    def _welcome(self, job: Job, hello: control.Hello) -> None:
        shard = self._shard
        self.job, self.rank, self.span, self.process = job, hello.rank, hello.span, hello.process
        self.max_frame = shard.options.max_frame
        shard.strangers.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        job.connections[hello.rank], job.begun, job.idle_since = self, True, None
        _log.info("job %s: worker %d at %s is %s", job.name, hello.rank, self.peer, "back" if hello.known else "here")
        aggregator, now = job.aggregator, shard.now()
        earlier = "" if hello.known == job.incarnation else hello.known

        def greeted(answer: tuple[list[Send], int]) -> None:
            sends, go_on = answer
            options = shard.options
            self.say(
                control.Welcome(
                    job.incarnation,
                    shard.number,
                    options.shards,
                    options.rules.needed,
                    go_on,
                    aggregator.first_round,
                    float(options.rules.timeout) + job.upstream_timeout,
                    float(options.rules.scale_cap or 0),
                )
            )
            shard.deliver(job, sends)

        def work() -> tuple[list[Send], int]:
            sends = aggregator.greet(hello.rank, hello.position, now, earlier, hello.span)
            return sends, job.next_round

        job.serial.run(work, greeted, self.cannot_handle)

    def cannot_handle(self, error: Exception) -> None:
        """What this peer sent ended in an error."""

        def again() -> Any:
            raise error

        self.guarded(again)


class Handshake(asyncio.Protocol):
    """Accepts TCP, then becomes a `Connection` over TLS.

    It is counted and timed like any stranger: asyncio would let any number of them wait for a minute.
    """

    def __init__(self, shard: Shard, context: ssl.SSLContext) -> None:
        self._shard, self._context = shard, context
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self.peer = "an unknown address"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # what comes is for TLS
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else self.peer
        self._shard.arrived(self)
        self._task = asyncio.get_running_loop().create_task(self._negotiate(transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._shard.gone(self)

    def abort(self) -> None:
        """Make room for others."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _negotiate(self, transport: asyncio.Transport) -> None:
        connection = Connection(self._shard)
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport, connection, self._context, server_side=True, ssl_handshake_timeout=GREETING
            )
        except (OSError, ssl.SSLError) as error:  # a time-out is a ConnectionAbortedError
            _log.warning("a stranger at %s is refused: TLS failed: %s", self.peer, error)
            transport.abort()
            return
        finally:
            self._shard.gone(self)
        if secure is not None and not secure.is_closing():
            connection.connection_made(secure)
            connection.catch_up()  # its greeting may have come with the end of the handshake
