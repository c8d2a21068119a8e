"""`Link`: averages over the parameter server, without asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any, Self, TypeVar

from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.client.async_link import AsyncLink, measured
from sumwire.aggregate.client.contribution import Contribution
from sumwire.aggregate.round import Request
from sumwire.codec.algebra import ErrorFeedback, Payload, Shape, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.errors import RoundError

T = TypeVar("T")


class Link(Aggregator):
    """A worker's link to the server: `AsyncLink` on a thread of its own. Threads may share it.

    It connects when it is first used, or at the begin of a `with` statement, whose end closes it; else call `close`.
    Processes cannot share it once it is connected: open one in each, with a rank of its own.
    """

    ascending = True

    def __init__(self, address: str, **options: Any) -> None:
        self._link = AsyncLink(address, **options)
        self._address, self._options = address, options
        self._side_channels: dict[str, Link] = {}
        self.rank, self.workers, self.codec = self._link.rank, self._link.workers, self._link.codec
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opening = threading.Lock()
        self._opened_by = 0

    # Beginning and end

    def open(self) -> Self:
        """Connect now, rather than when it is first used."""
        self._open()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def close(self) -> None:
        """End all connections. Rounds in flight raise `RoundError`."""
        for side in self._side_channels.values():
            side.close()
        with self._opening:
            if self._thread is None:
                self._thread = threading.Thread()  # which is never started: nor is the link opened later
            loop, self._loop = self._loop, None
        if loop is not None and self._opened_by == os.getpid():  # else it is the parent process's
            asyncio.run_coroutine_threadsafe(self._link.close(), loop).result()
            self._stop(loop)

    def _open(self) -> asyncio.AbstractEventLoop:
        with self._opening:
            if self._loop is not None and self._opened_by != os.getpid():
                raise RoundError(
                    f"the link was opened by process {self._opened_by}, from which process {os.getpid()} was forked: "
                    "open a link in each process, with a rank of its own"
                )
            if self._loop is not None:
                return self._loop
            if self._thread is not None:
                raise RoundError("the link is closed: open another one to go on")
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=loop.run_forever, name="sumwire-link", daemon=True)
            self._thread.start()
            opening = asyncio.run_coroutine_threadsafe(self._link.__aenter__(), loop)
            try:
                opening.result()
            except BaseException:
                opening.cancel()
                self._stop(loop)
                raise
            self._loop, self._opened_by = loop, os.getpid()
            return loop

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._thread is not None
        asyncio.run_coroutine_threadsafe(_drain(loop), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    # What an aggregator does

    def join(self, terms: Terms, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        with _timed(workspace):
            return self._run(self._link.join(terms, round_id=round_id, workspace=workspace))

    def add(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        with _timed(workspace):
            return self._run(self._link.add(payload, workspace=workspace))

    def contribute(self, request: Request, contribution: Contribution | None) -> bytes:
        """The total, for a rack that has added its workers' payloads: messages that `read_total` reads."""
        return self._run(self._link.contribute(request, contribution))

    def skip(self, terms: Terms, *, round_id: int, reason: str) -> Sum:
        return self._run(self._link.skip(terms, round_id=round_id, reason=reason))

    can_listen = True

    def listen(self, codec: Codec, shape: Shape, *, round_id: int, reason: str) -> Sum:
        return self._run(self._link.listen(codec, shape, round_id=round_id, reason=reason))

    @property
    def upcoming(self) -> int:
        """The number that `next_round` will give."""
        return self._call(lambda: self._link.upcoming)

    def next_round(self) -> int:
        """The number of the next round. It counts as in flight until `end_round`, or until it is averaged."""
        return self._call(self._link.next_round)

    def end_round(self, round_id: int, error: BaseException | None = None) -> None:
        if self._loop is not None:  # else all rounds have ended
            with suppress(RoundError):
                self._call(lambda: self._link.end_round(round_id, error))

    @property
    def first_round(self) -> int:
        """The round with which the job began."""
        self._open()
        return self._link.first_round

    def side_channel(self, name: str) -> Link:
        """A link to the same server under a job of its own, which ends with this one."""
        if name not in self._side_channels:
            options = self._options | {"job": f"{self._options.get('job', 'default')}/{name}", "codec": None}
            self._side_channels[name] = Link(self._address, **options)
        return self._side_channels[name]

    def check_residual(self, codec: Codec, residual: ErrorFeedback | None) -> None:
        self._link.check_residual(codec, residual)

    def report(self, *, nmse: float) -> None:
        """Tell the server an error, for its page and metrics. Does not wait until it is sent."""
        message = measured(nmse)
        self._open().call_soon_threadsafe(self._link.tell, message)

    def _call(self, function: Callable[[], T]) -> T:
        """Where nothing else happens meanwhile."""

        async def call() -> T:
            return function()

        return self._run(call())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._open())
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:  # an interrupt, say: the round must not go on alone
            future.cancel()
            raise


def _timed(workspace: Workspace | None) -> Any:
    return nullcontext() if workspace is None else workspace.statistics.time("exchange")


async def _drain(loop: asyncio.AbstractEventLoop) -> None:
    """Let other threads' rounds, which the closed link has ended, tell them so."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5)
    await loop.shutdown_default_executor()
