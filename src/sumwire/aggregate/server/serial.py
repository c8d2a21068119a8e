"""Runs a job's work in order: light work at once, heavy work in a thread, so that other jobs and the clock go on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

HEAVY = 1 << 18
"""Bytes: work on this many or more leaves the event loop."""
BATCH = 256
"""Pieces of light work that a thread does before the event loop hears of them."""


@dataclass
class _Task:
    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    nbytes: int
    result: Any = None
    error: Exception | None = None

    def do(self) -> None:
        try:
            self.result = self.work()
        except Exception as error:
            self.error = error

    def report(self) -> None:
        if self.error is None:
            self.done(self.result)
        else:
            self.failed(self.error)


class Serial:
    """One job's work. `work` may run in a thread, one piece at a time; `done` and `failed` run in the event loop."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._waiting: deque[_Task] = deque()
        self.busy = False
        self._closed = False

    def close(self) -> None:
        """Do nothing more."""
        self._closed = True
        self._waiting.clear()

    def run(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        *,
        nbytes: int = 0,
    ) -> None:
        """Do this after all that was asked for before; at once, if nothing is in progress and it is light."""
        if self._closed:
            return
        task = _Task(work, done, failed, nbytes)
        if not self.busy and nbytes < HEAVY:
            task.do()
            task.report()
            return
        self._waiting.append(task)
        if not self.busy:
            self._start()

    def _start(self) -> None:
        """Give a thread what waits: up to the first heavy piece, or many light ones."""
        batch: list[_Task] = []
        while self._waiting and len(batch) < BATCH and not (batch and batch[-1].nbytes >= HEAVY):
            batch.append(self._waiting.popleft())
        self.busy = True
        future = asyncio.get_running_loop().run_in_executor(self._pool, _do_all, batch)
        future.add_done_callback(lambda ended: self._ended(batch, ended))

    def _ended(self, batch: list[_Task], ended: asyncio.Future[None]) -> None:
        if self._closed or ended.cancelled():
            return
        try:
            for task in batch:
                task.report()
        finally:
            self.busy = False
            if self._waiting:
                self._start()


def _do_all(batch: list[_Task]) -> None:
    for task in batch:
        task.do()
