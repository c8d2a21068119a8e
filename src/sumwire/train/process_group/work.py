"""The work of rounds in flight, as torch waits for it.

torch can make a work of a future itself, but such a work's `wait` does not raise what went wrong. And a future that
Python sets an exception on has, for C++, that exception as its result; one whose callback raises has an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from sumwire.errors import RoundError
from sumwire.train.rounds import when_done


class RoundWork(dist.Work):
    """Done once all rounds are. `wait` raises the first error among them, as it was raised."""

    def __init__(
        self, rounds: Sequence[Future[Any]], results: list[torch.Tensor], finish: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self._results = results
        self._done: Future[None] = Future()
        when_done(rounds, self._done, finish)
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until all is done; after `timeout`, if it is not zero, raise `RoundError`."""
        seconds = timeout.total_seconds() if timeout else None
        try:
            self._done.result(seconds)
        except TimeoutError:
            if self._done.done():
                raise  # of a round
            raise RoundError(
                f"not done after {seconds:g} s: wait again, or with a longer timeout; did every rank call it?"
            ) from None
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Of the list of tensors."""
        if self._future is None:
            start: torch.futures.Future[None] = torch.futures.Future()
            self._future = start.then(self._outcome)
            self._done.add_done_callback(lambda _: start.set_result(None))
        return self._future

    def _outcome(self, _: object) -> list[torch.Tensor]:
        self._done.result()
        return self._results

    def is_completed(self) -> bool:
        return self._done.done()

    def is_success(self) -> bool:
        return self._done.done() and self._done.exception() is None

    def exception(self) -> BaseException | None:
        return self._done.exception() if self._done.done() else None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def synchronize(self) -> None:
        self.wait()


def of_work(work: dist.Work) -> Future[None]:
    """A future of torch's own work, which must have one."""
    done: Future[None] = Future()

    def told(future: torch.futures.Future[Any]) -> None:
        try:
            future.value()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    work.get_future().add_done_callback(told)
    return done
