"""`Link`: averages over the parameter server, without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from sumwire.aggregate.client.link import AsyncLink, measured
from sumwire.aggregate.client.pending import Reply
from sumwire.codec.base import Payload, Sum, Terms
from sumwire.codec.lattice.residual import Residual
from sumwire.codec.tensors import Tensor
from sumwire.errors import RoundError
from sumwire.wire.codecs import AnyCodec

T = TypeVar("T")

_CLOSED = "the link is not open: use it in a with statement"


class Link:
    """A worker's link to the server: `AsyncLink` on a thread of its own. Use `with`. Threads may share it."""

    def __init__(self, address: str, **options: Any) -> None:
        self._link = AsyncLink(address, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RoundError("a link is opened once: make another")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sumwire-link", daemon=True)
        self._thread.start()
        try:
            self._run(self._link.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._run(self._link.close())
            self._stop()

    @property
    def rank(self) -> int:
        return self._link.rank

    @property
    def workers(self) -> int:
        return self._link.workers

    @property
    def next_round(self) -> int:
        """The round that the next `average` takes part in, unless it is told another."""
        return self._link.next_round

    def average(
        self,
        x: Tensor,
        *,
        codec: AnyCodec | None = None,
        round_id: int | None = None,
        residual: Residual | None = None,
    ) -> Tensor:
        """The mean of all workers' tensors: see `AsyncLink.average`."""
        return self._run(self._link.average(x, codec=codec, round_id=round_id, residual=residual))

    def join(self, terms: Terms, *, round_id: int) -> Any:
        """The terms of all workers, joined: see `AsyncLink.join`."""
        return self._run(self._link.join(terms, round_id=round_id))

    def add(self, payload: Payload) -> Sum:
        """The sum of all workers' payloads: see `AsyncLink.add`."""
        return self._run(self._link.add(payload))

    def exchange(self, payload: Payload) -> Reply:
        """The sum, and what of the payload came too late for it: see `AsyncLink.exchange`."""
        return self._run(self._link.exchange(payload))

    def report(self, *, nmse: float) -> None:
        """Tell the server an error, for its page and metrics. Does not wait until it is sent."""
        message = measured(nmse)
        if self._loop is None:
            raise RoundError(_CLOSED)
        self._loop.call_soon_threadsafe(self._link.tell, message)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RoundError(_CLOSED)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # an interrupt, say: the round must not go on alone
            future.cancel()
            raise

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(_drain(loop), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()


async def _drain(loop: asyncio.AbstractEventLoop) -> None:
    """Let other threads' rounds, which the closed link has ended, tell them so."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5)
    await loop.shutdown_default_executor()
