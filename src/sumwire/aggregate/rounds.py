"""Rounds in flight: several rounds at once, each step in a thread of its own.

    agree     propose, join
    compress  encode
    add       payloads in, this worker's part of the sum out
    gather    everyone's parts
    decode    the sum into the tensor

While one round waits for the network, others compute; no caller waits for either. Rounds leave every stage in the order
in which they entered, so workers that submit the same rounds issue the same collectives in the same order.

Proposing and encoding take turns: kernels use all the cores they may, so two at once would only delay each other.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import Any, Protocol

from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.round import Round
from sumwire.codec.tensors import Tensor
from sumwire.errors import RoundError
from sumwire.kernels.arrays import Buffers

_log = logging.getLogger(__name__)

IN_FLIGHT = 4
"""Rounds that may hold memory at once: one per stage."""


class Steps(Protocol):
    """What passes through the stages: a `Round`, or something that takes its place in line."""

    def agree(self) -> None: ...
    def compress(self) -> None: ...
    def add(self) -> None: ...
    def gather(self) -> None: ...
    def decode(self) -> Any: ...


@dataclass(eq=False)
class _InFlight:
    number: int
    steps: Steps
    future: Future[Any]
    buffers: Buffers | None = None
    result: Any = None


class SettingsCheck:
    """Takes a round's place in line, and finds out whether all workers have the same settings."""

    def __init__(self, aggregator: Aggregator, settings: Mapping[str, object]) -> None:
        self._aggregator, self._settings = aggregator, settings

    def agree(self) -> None:
        self._aggregator.check_settings(self._settings)

    def compress(self) -> None:
        """Nothing to encode."""

    def add(self) -> None:
        """Nothing to add."""

    def gather(self) -> None:
        """Nothing to gather."""

    def decode(self) -> None:
        """Nothing to decode."""


class RoundsInFlight:
    """Runs rounds over an aggregator. If a round fails, it and all that were submitted after it get its error.

    It knows nothing of whoever submits rounds, so that they can be garbage-collected while it waits for work.
    """

    def __init__(self, aggregator: Aggregator, name: str = "sumwire", *, lent: bool = False) -> None:
        self.aggregator = aggregator
        self._lent = lent  # and so closed by whoever opened it
        self.error: BaseException | None = None
        """What ended it, if anything did."""
        self._failed: int | None = None
        """The first round, in the order of submission, that failed."""
        self._submitted = 0
        self._stopped = False
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._free: SimpleQueue[Buffers] = SimpleQueue()
        for _ in range(IN_FLIGHT):
            self._free.put(Buffers())
        stages: list[tuple[str, Callable[[_InFlight], None]]] = [
            ("agree", self._agree), ("compress", self._compress), ("add", self._add),
            ("gather", self._gather), ("decode", self._decode),
        ]  # fmt: skip
        self._queues: list[SimpleQueue[_InFlight | None]] = [SimpleQueue() for _ in stages]
        self._threads = [
            threading.Thread(target=self._work, args=(number, stage), name=f"{name}-{label}", daemon=True)
            for number, (label, stage) in enumerate(stages)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, steps: Steps) -> Future[Tensor]:
        """Returns at once; the future has the mean."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a round cannot be canceled: the other workers count on it
        with self._lock:
            if self._stopped:
                raise RoundError("closed: nothing can be submitted any more; build another RoundsInFlight")
            self._queues[0].put(_InFlight(self._submitted, steps, future))
            self._submitted += 1
        return future

    @property
    def runs_here(self) -> bool:
        """Whether the calling thread is one of the stages'."""
        return threading.current_thread() in self._threads

    def stop(self) -> None:
        """Take no more rounds; the threads end after those that were submitted."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queues[0].put(None)

    def close(self, timeout: float | None = None) -> None:
        """Finish what was submitted, then end the threads; give up waiting for them after `timeout` seconds."""
        self.stop()
        deadline = None if timeout is None else monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - monotonic()))

    def end(self, patience: float | None) -> None:
        """Finish the rounds in flight, or give up on them after `patience` seconds; then close the aggregator."""
        self.close(patience)
        if not self._lent:
            self.aggregator.close()

    # The stages

    def _agree(self, job: _InFlight) -> None:
        if isinstance(job.steps, Round):
            job.buffers = job.steps.workspace.buffers = self._free.get()
            job.steps.workspace.turn = self._turn
            if self.error is not None and self._follows_a_failure(job):
                raise self.error  # it came while this round waited for memory
        job.steps.agree()

    def _compress(self, job: _InFlight) -> None:
        job.steps.compress()

    def _add(self, job: _InFlight) -> None:
        job.steps.add()

    def _gather(self, job: _InFlight) -> None:
        job.steps.gather()
        if isinstance(job.steps, Round):
            job.steps.aggregator.end_round(job.steps.round_id)

    def _decode(self, job: _InFlight) -> None:
        job.result = job.steps.decode()

    def _work(self, number: int, stage: Callable[[_InFlight], None]) -> None:
        onward = self._queues[number + 1] if number + 1 < len(self._queues) else None
        while (job := self._queues[number].get()) is not None:
            if self.error is not None and self._follows_a_failure(job):
                self._skip(job, self.error, agreed=number > 0)
            else:
                try:
                    stage(job)
                except BaseException as error:
                    self._fail(job, error)
                    _forget_locals(error)
                else:
                    if onward is None:
                        self._finish(job, None)
                    else:
                        onward.put(job)
            del job  # or it would live, with its tensors, until the next one comes
        if onward is not None:
            onward.put(None)

    def _follows_a_failure(self, job: _InFlight) -> bool:
        return self._failed is not None and job.number > self._failed

    def _fail(self, job: _InFlight, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error
            self._failed = job.number if self._failed is None else min(self._failed, job.number)
        self._give_up(job, error)

    def _skip(self, job: _InFlight, error: BaseException, *, agreed: bool) -> None:
        if agreed and isinstance(job.steps, Round):
            with _logged("taking a payload back"):
                job.steps.failed()
        self._give_up(job, error)

    def _give_up(self, job: _InFlight, error: BaseException) -> None:
        if isinstance(job.steps, Round):
            with _logged("giving up a round"):
                job.steps.aggregator.end_round(job.steps.round_id, error)
        self._finish(job, error)

    def _finish(self, job: _InFlight, error: BaseException | None) -> None:
        if job.buffers is not None:
            self._free.put(job.buffers)
        with _logged("a callback"):
            if error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(error)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """A thread that died of this would leave all later rounds waiting."""
    try:
        yield
    except BaseException:
        _log.exception("%s failed", what)


def _forget_locals(error: BaseException | None) -> None:
    """An error is kept for later rounds; what the frames it passed through held, tensors and owners, must not be."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
