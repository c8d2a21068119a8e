"""Stages that jobs pass through in order, each in a thread of its own.

A stage may wait for the network while the others compute. Jobs leave every stage in the order in
which they entered, so ranks that submit the same jobs issue the same collectives in the same order.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from sumwire.errors import RoundError

_log = logging.getLogger(__name__)


class Job(Protocol):
    """What passes through the stages."""

    def finish(self, error: BaseException | None) -> None:
        """Called once, when the last stage is done or any has failed."""


J = TypeVar("J", bound=Job)


class Pipeline(Generic[J]):
    """After the first failure nothing runs any more: that job and all later ones get its error."""

    def __init__(
        self,
        name: str,
        stages: Sequence[Callable[[J], None]],
        blame: Callable[[J, BaseException], BaseException] = lambda job, error: error,
    ) -> None:
        self.error: BaseException | None = None
        self._blame = blame
        self._closed = False
        self._queues: list[SimpleQueue[J | None]] = [SimpleQueue() for _ in stages]
        self._threads = [
            threading.Thread(target=self._work, args=(number, stage), name=f"{name}-{number}", daemon=True)
            for number, stage in enumerate(stages)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: J) -> None:
        """Returns at once; `job.finish` tells when it is done."""
        if self._closed:
            raise RoundError("closed: nothing can be submitted any more")
        self._queues[0].put(job)

    @property
    def runs_here(self) -> bool:
        """Whether the calling thread is one of the stages'."""
        return threading.current_thread() in self._threads

    def stop(self) -> None:
        """Take no more jobs; the threads end after those that were submitted."""
        if not self._closed:
            self._closed = True
            self._queues[0].put(None)

    def close(self, timeout: float | None = None) -> None:
        """Finish what was submitted, then end the threads; give up waiting for them after `timeout` seconds."""
        self.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _work(self, number: int, stage: Callable[[J], None]) -> None:
        onward = self._queues[number + 1] if number + 1 < len(self._queues) else None
        while (job := self._queues[number].get()) is not None:
            try:
                if self.error is not None:
                    raise self.error
                stage(job)
            except BaseException as error:
                self.error = self.error or self._blame(job, error)
                self._finish(job)
                _forget_locals(error)
            else:
                if onward is None:
                    self._finish(job)
                else:
                    onward.put(job)
            del job  # or it would live, with its tensors, until the next one comes
        if onward is not None:
            onward.put(None)

    def _finish(self, job: J) -> None:
        try:
            job.finish(self.error)
        except BaseException as error:  # a thread that died here would leave all later jobs waiting
            _log.exception("a callback failed")
            self.error = self.error or error


def _forget_locals(error: BaseException | None) -> None:
    """An error is kept for later jobs; what the frames it passed through held, tensors and owners, must not be."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
