"""Jobs pass stages in order; a failure ends all that follow, and nothing waits for ever."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

import pytest
from sumwire.aggregate.pipeline import Pipeline
from sumwire.aggregate.slots import Buffers, Slots

from sumwire.errors import RoundError


class Job:
    def __init__(self, number: int, done: Callable[[int, BaseException | None], None]) -> None:
        self.number, self.seen, self._done = number, list[int](), done

    def finish(self, error: BaseException | None) -> None:
        self._done(self.number, error)


def test_jobs_leave_in_the_order_in_which_they_came() -> None:
    ended: list[int] = []
    line: Pipeline[Job] = Pipeline("test", [lambda job: job.seen.append(1), lambda job: job.seen.append(2)])
    jobs = [Job(k, lambda number, error: ended.append(number)) for k in range(100)]
    for job in jobs:
        line.submit(job)
    line.close()
    assert ended == list(range(100))
    assert all(job.seen == [1, 2] for job in jobs)


def test_stages_work_at_the_same_time() -> None:
    meet = threading.Barrier(2)

    def first(job: Job) -> None:
        if job.number == 1:
            meet.wait(10)

    def second(job: Job) -> None:
        if job.number == 0:
            meet.wait(10)

    line: Pipeline[Job] = Pipeline("test", [first, second])
    for k in range(2):
        line.submit(Job(k, lambda number, error: None))
    line.close()
    assert line.error is None


def test_an_error_that_is_kept_keeps_no_job() -> None:
    def fail(job: Job) -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("then") from error

    line: Pipeline[Job] = Pipeline("test", [fail])
    job = Job(0, lambda number, error: None)
    gone = weakref.ref(job)
    line.submit(job)
    line.close()
    del job
    assert isinstance(line.error, ValueError)
    assert line.error.__traceback__ is not None  # it still says where
    assert gone() is None


def test_after_a_failure_all_get_its_error() -> None:
    ended: list[tuple[int, str]] = []

    def fail(job: Job) -> None:
        if job.number == 2:
            raise ValueError("no")

    def blame(job: Job, error: BaseException) -> BaseException:
        return RuntimeError(f"job {job.number}: {error}")

    line: Pipeline[Job] = Pipeline("test", [lambda job: None, fail], blame)
    for k in range(5):
        line.submit(Job(k, lambda number, error: ended.append((number, str(error)))))
    line.close()
    assert dict(ended) == {0: "None", 1: "None", 2: "job 2: no", 3: "job 2: no", 4: "job 2: no"}


def test_a_callback_that_raises_stops_nothing_but_the_line(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[tuple[int, str]] = []

    def done(number: int, error: BaseException | None) -> None:
        ended.append((number, str(error)))
        if number == 0:
            raise ValueError("bad callback")

    line: Pipeline[Job] = Pipeline("test", [lambda job: None])
    with caplog.at_level(logging.CRITICAL + 1):
        line.submit(Job(0, done))
        line.submit(Job(1, done))
        line.close()
    assert ended == [(0, "None"), (1, "bad callback")]


def test_what_is_closed_takes_no_more() -> None:
    line: Pipeline[Job] = Pipeline("test", [lambda job: None])
    line.close()
    line.close()
    with pytest.raises(RoundError, match="closed"):
        line.submit(Job(0, lambda number, error: None))


def test_slots_grow_and_are_lent_again() -> None:
    slots = Slots(1)
    buffers = slots.borrow()
    buffers.take("a", 100)[:] = 7
    assert (buffers.take("a", 50) == 7).all()
    grown = buffers.take("a", 1000)
    assert grown.nbytes == 1000
    slots.give_back(buffers)
    assert slots.borrow() is buffers
    assert isinstance(buffers, Buffers)
    assert buffers.nbytes >= 1000
