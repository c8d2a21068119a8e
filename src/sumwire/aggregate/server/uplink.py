"""A rack's connection to the upstream server, for one job at one shard: the rack is a worker there."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from sumwire.aggregate.protocol.connection import Address, ShardConnection
from sumwire.aggregate.protocol.tls import worker_context
from sumwire.aggregate.server.options import Upstream
from sumwire.aggregate.server.rack import RackAggregator
from sumwire.aggregate.server.round import Send
from sumwire.errors import ConfigError, RoundError, SumwireError
from sumwire.wire import control
from sumwire.wire.frame import Frame

if TYPE_CHECKING:
    from sumwire.aggregate.server.connection import Connection
    from sumwire.aggregate.server.job import Job
    from sumwire.aggregate.server.shard import Shard

_log = logging.getLogger(__name__)

RETRY = 1.0
"""Seconds: ten times as long without an answer, and the connection is made again."""


class Uplink:
    """Connects when a job begins, and hands what comes from upstream to the job's aggregator.

    Shard k of a rack talks to shard k upstream, so both have as many. Workers are welcomed once upstream has welcomed
    the rack, since rounds count from where they do there.
    """

    def __init__(self, shard: Shard, job: Job, aggregator: RackAggregator, upstream: Upstream) -> None:
        self._shard, self._job, self._aggregator = shard, job, aggregator
        self._token = upstream.token
        self._process = secrets.token_hex(8)
        self.welcome: control.Welcome | None = None
        self._waiting: list[tuple[Connection, control.Hello]] = []
        address = Address(upstream.host, upstream.port, None if upstream.tls is None else worker_context(*upstream.tls))
        self._name = f"{address.host}:{address.port + shard.number}"
        timeout = shard.options.rules.timeout
        self._peer = ShardConnection(self, address, shard.number, self._hello, timeout, RETRY)

    def send(self, send: Send) -> None:
        """Send to the upstream server; what is lost on the way is sent again when it asks."""
        if send.asks is not None:
            self._peer.ask(send.asks)
        else:
            self._peer.send(send.pieces)

    def greet_later(self, connection: Connection, hello: control.Hello) -> None:
        """A worker has to wait until upstream has welcomed this rack."""
        self._waiting.append((connection, hello))

    def close(self) -> None:
        """End the connection."""
        closing = asyncio.get_running_loop().create_task(self._peer.close())
        self._shard.closing.add(closing)
        closing.add_done_callback(self._shard.closing.discard)

    def _hello(self, known: str) -> control.Hello:
        rules, aggregator = self._shard.options.rules, self._aggregator
        first, span = rules.members[0], len(rules.members)
        position = aggregator.next_round if known else 0
        return control.Hello(
            self._job.name, self._token, first, self._process, rules.workers, position, known, span=span
        )

    # What upstream says

    def welcomed(self, shard: int, welcome: control.Welcome, again: bool) -> None:
        if welcome.shards != self._shard.options.shards:
            self.fail_all(ConfigError(
                f"the upstream server has {welcome.shards} shards, this rack {self._shard.options.shards}: start both "
                "with the same --shards"
            ))  # fmt: skip
            return
        if welcome.scale_cap:
            self.fail_all(ConfigError(
                "the upstream server caps scales by their median, for which it needs those of every worker: start it "
                "without --scale-cap, or let all workers connect to it"
            ))  # fmt: skip
            return
        _log.info("job %s: upstream at %s is %s", self._job.name, self._name, "started anew" if again else "here")
        self.welcome = welcome
        aggregator = self._aggregator
        aggregator.first_round = welcome.first_round
        self._run(lambda: aggregator.reconnected(again))
        waiting, self._waiting = self._waiting, []
        for connection, hello in waiting:
            connection.take_over(hello)

    def told(self, shard: int, message: control.Control) -> None:
        aggregator, now = self._aggregator, self._shard.now()
        self._run(lambda: aggregator.from_upstream(message, now))

    def got(self, shard: int, frame: Frame) -> None:
        aggregator, now = self._aggregator, self._shard.now()
        self._run(lambda: aggregator.from_upstream(frame, now), frame.length)

    def fail_all(self, error: SumwireError) -> None:
        """The upstream server is gone, or wants nothing of this rack: its workers are told, and the job ends here."""
        reason = f"upstream of this rack: {error}"
        _log.warning("job %s: %s", self._job.name, reason)
        aggregator, now = self._aggregator, self._shard.now()
        self._run(lambda: aggregator.lost_upstream(reason, now))
        waiting, self._waiting = self._waiting, []
        for connection in [*(each for each, _ in waiting), *self._job.connections.values()]:
            connection.refused(RoundError(reason))
        self._shard.forget(self._job)

    def _run(self, work: Callable[[], list[Send]], nbytes: int = 0) -> None:
        job, shard = self._job, self._shard

        def failed(error: Exception) -> None:
            if not isinstance(error, SumwireError):
                _log.error("job %s: an error that should not happen", job.name, exc_info=error)
                return
            _log.warning("job %s: what upstream at %s sends cannot be used: %s", job.name, self._name, error)

        job.serial.run(work, lambda sends: shard.deliver(job, sends), failed, nbytes=nbytes)
