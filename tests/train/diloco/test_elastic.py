"""Workers that join, fall behind or lose the others, over a real server; each is a thread with a link of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from sumwire import Server
from sumwire.errors import MismatchError, RoundError
from sumwire.train import DiLoCo
from sumwire.train.diloco.membership import CHUNK, Agreement, Membership
from sumwire.train.diloco.outer import Outer
from tests.train.diloco.workers import build, in_threads, train, values

EVERY = 2


class Worker:
    """Trains in a thread until it is told to stop."""

    def __init__(self, server: Server, rank: int, *, workers: int = 3, **options: Any) -> None:
        self.model = build(seed=rank)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.at = {"rank": rank, "workers": workers, "job": "elastic", "every": EVERY, "patience": 400.0}
        self.server, self.options, self.rank = server, options, rank
        self.digests: dict[int, str] = {}
        self.may_step = threading.Event()
        self.may_step.set()
        self.ends = False

    def run(self) -> DiLoCo:
        diloco = DiLoCo(self.model, self.optimizer, self.server.address, **self.at, **self.options)
        self.joined_at = diloco.steps
        try:
            while not self.ends:
                time.sleep(0.01)  # so that workers take part in the same rounds, on few cores too
                self.may_step.wait()
                train(self.model, self.optimizer, range(1), self.rank)
                if diloco.steps % EVERY == 0:
                    self.digests[diloco.steps] = diloco.digest()
        finally:
            diloco.close()
        return diloco

    def wait_for(self, rounds: int) -> None:
        """Until it has made that many more outer steps."""
        goal = len(self.digests) + rounds
        _wait(lambda: len(self.digests) >= goal)


def _wait(condition: Callable[[], bool], timeout: float = 400) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def shared(*workers: Worker) -> set[int]:
    """After which steps all of them have compared."""
    return set.intersection(*(set(worker.digests) for worker in workers))


def equal(*workers: Worker) -> bool:
    """Digests after the same steps are the same."""
    return all(len({worker.digests[step] for worker in workers}) == 1 for step in shared(*workers))


def test_newcomers_and_those_who_fell_behind_take_the_others_state() -> None:
    with Server(3, quorum=1, linger=0.2) as server, ThreadPoolExecutor(3) as pool:
        workers = [Worker(server, rank, bits=2, feedback=True) for rank in range(3)]
        running = [pool.submit(worker.run) for worker in workers[:2]]
        for worker in workers[:2]:
            worker.wait_for(2)
        running.append(pool.submit(workers[2].run))  # a newcomer, with weights of its own
        workers[2].wait_for(2)
        workers[1].may_step.clear()  # long enough that the server forgets the rounds that it misses
        paused = max(workers[1].digests)
        workers[0].wait_for(12)
        workers[1].may_step.set()
        # Whoever is slow may miss a round: until each has been in some, however many that takes.
        _wait(lambda: len(shared(workers[0], workers[2])) > 5)
        _wait(lambda: max(shared(workers[0], workers[1]), default=0) > paused + 12 * EVERY)
        for worker in workers:
            worker.ends = True
        dilocos = [each.result(400) for each in running]
    assert workers[2].joined_at > 0
    assert dilocos[2].joined
    assert equal(workers[0], workers[2])
    assert equal(workers[0], workers[1])
    dilocos[2].load_state_dict({"not": "even looked at"})


def test_without_the_others_it_goes_on_for_a_round_and_then_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for timeout in (1.0, 10.0, 100.0):  # on a busy machine, a second may pass before both are there
        with Server(2, timeout=timeout) as server, ThreadPoolExecutor(2) as pool:
            workers = [Worker(server, rank, workers=2) for rank in range(2)]
            running = [pool.submit(worker.run) for worker in workers]
            _wait(lambda workers=workers, running=running: all(w.digests for w in workers) or running[0].done())  # type: ignore[misc]
            workers[1].ends = True
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="sumwire"), pytest.raises(RoundError):
                running[0].result(400)
            if running[1].exception(400) is None:
                break
    assert any("training goes on without it" in record.getMessage() for record in caplog.records)
    assert any("could not compare" in record.getMessage() for record in caplog.records)
    assert torch.isfinite(values(workers[0].model)).all()


def test_options_are_compared_over_a_server_too() -> None:
    with Server(2) as server, ThreadPoolExecutor(2) as pool:
        workers = [Worker(server, rank, workers=2, exact_below=rank) for rank in range(2)]
        for future in [pool.submit(worker.run) for worker in workers]:
            with pytest.raises(MismatchError, match="different options"):
                future.result(400)


def test_a_state_of_many_chunks_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.train.diloco.membership.CHUNK", 7)
    assert CHUNK > 7
    words = np.arange(40, dtype=np.int32) - 20
    agreement = Agreement(np.zeros(4, np.int32), False, True, len(words), 1 << 61)

    def work(worker: Any) -> Any:
        membership = Membership(worker, 1, elastic=False, patience=10)
        if worker.rank == 0:
            membership.offer(agreement, words)
            return words
        return membership.request(agreement)

    for found in in_threads(3, work):
        np.testing.assert_array_equal(found, words)


def test_a_state_that_arrives_damaged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Outer.packed

    def damaged(self: Outer, progress: Any) -> Any:
        words = pack(self, progress)
        words[-1] ^= 1
        return words

    monkeypatch.setattr(Outer, "packed", damaged)

    def work(worker: Any) -> str:
        model = build(seed=worker.rank)
        try:
            DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), worker).close()
        except MismatchError as error:
            return str(error)
        return ""

    assert sum("not those that the others have" in said for said in in_threads(2, work)) == 1
