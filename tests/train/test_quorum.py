"""Training over a server that does not wait for everybody: ranks that are slow, stopped, killed, or come back.

Ranks are processes without a process group in common: each has its own, of one rank, and knows its rank at the server.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumwire import Server
from sumwire.train import attach
from tests.ranks import context as _context

WORKERS = 3
SIZE = 3000


class Weighted(torch.nn.Module):
    """The gradient of its weight is whatever it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def work(rank: int, server: str, directory: str, sender: Connection, may_step: Event) -> None:
    """Steps until it is killed, while it may; reports (step, weights, mean of the gradient) of each."""
    torch.set_num_threads(1)
    store = Path(directory, f"store-{rank}-{os.getpid()}").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    model = DistributedDataParallel(Weighted())
    state = attach(
        model, bits=8, warmup=0, fallback=False, exact_below=0, sample_every=0, server=server, job="quorum",
        rank=rank, workers=WORKERS, resync=2,
    )  # fmt: skip
    while True:
        x = torch.full((SIZE,), float(rank + 1))
        time.sleep(0.02)  # so that ranks take part in the same steps, on few cores too
        may_step.wait()
        model.zero_grad()
        model(x).backward()
        gradient = model.module.weight.grad
        assert gradient is not None
        with torch.no_grad():
            model.module.weight -= 0.01 * gradient
        if not state.behind:  # any rank may be, on a busy machine; its weights are its own until the next resync
            sender.send((state.step, model.module.weight.detach().numpy().copy(), float(gradient.mean())))


class Rank:
    def __init__(self, rank: int, server: str, directory: Path) -> None:
        self.receiver, sender = _context.Pipe(duplex=False)
        self.may_step = _context.Event()
        self.may_step.set()
        arguments = (rank, server, str(directory), sender, self.may_step)
        self.process = _context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        sender.close()
        self.steps: dict[int, tuple[np.ndarray, float]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)  # or its pipe would fill, and it would wait
        self._reader.start()

    def join(self) -> None:
        """Once it was killed: until it is gone, and all that it has sent is read."""
        self.process.join()
        self._reader.join()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                step, *report = self.receiver.recv()
                self.steps[step] = tuple(report)

    def wait_for(self, steps: int, timeout: float = 400) -> None:
        """Until it has done that many more steps."""
        goal, end = len(self.steps) + steps, time.monotonic() + timeout
        while len(self.steps) < goal:
            assert time.monotonic() < end, f"{len(self.steps)} of {goal} steps in {timeout} s"
            assert self.process.is_alive(), "it has died"
            time.sleep(0.02)


@contextmanager
def training(tmp_path: Path) -> Iterator[tuple[Any, list[Rank]]]:
    with Server(workers=WORKERS, quorum=2) as server:
        ranks = [Rank(rank, server.address, tmp_path) for rank in range(WORKERS)]
        try:
            yield server, ranks
        finally:
            for rank in ranks:  # not one after the other: those that are left would wait for those that are gone
                rank.process.kill()
            for rank in ranks:
                rank.join()


def equal_where_both_are(one: Rank, other: Rank) -> int:
    """Weights after the same step are the same bits; how many steps both have."""
    shared = sorted(set(one.steps) & set(other.steps))
    for step in shared:
        np.testing.assert_array_equal(one.steps[step][0], other.steps[step][0], err_msg=f"after step {step}")
    return len(shared)


def means(rank: Rank) -> set[float]:
    return {round(gradient, 1) for _, gradient in rank.steps.values()}


def wait_until_it_counts(ranks: list[Rank], since: int) -> None:
    """Until a mean at rank 0 has rank 2's gradient in it: it is late for some rounds, but not for all."""
    for _ in range(100):
        if any(mean > 1.9 for step, (_, mean) in sorted(ranks[0].steps.items()) if step >= since):
            return
        ranks[0].wait_for(1)
    pytest.fail(f"the gradients of rank 2 never counted again after step {since}")


def test_fast_ranks_do_not_wait_for_a_slow_one(tmp_path: Path) -> None:
    with training(tmp_path) as (_, ranks):
        for rank in ranks:
            rank.wait_for(2)
        ranks[2].may_step.clear()
        for rank in ranks[:2]:
            rank.wait_for(25)  # which they never would, if they had to wait for it
        ranks[2].may_step.set()
        ranks[2].wait_for(3)
    assert equal_where_both_are(ranks[0], ranks[1]) > 15
    # The mean of those that arrived, never of something else: (1 + 2) / 2, or with the third (1 + 2 + 3) / 3.
    assert means(ranks[0]) <= {1.5, 2.0, 2.5}


def test_a_rank_that_was_stopped_comes_back(tmp_path: Path) -> None:
    with training(tmp_path) as (_, ranks):
        for rank in ranks:
            rank.wait_for(5)
        pid = ranks[2].process.pid or 0
        os.kill(pid, signal.SIGSTOP)
        ranks[0].wait_for(30)  # far more than the server remembers
        os.kill(pid, signal.SIGCONT)
        behind = max(ranks[2].steps)
        ranks[2].wait_for(8)
        for rank in ranks[:2]:
            rank.wait_for(4)
        wait_until_it_counts(ranks, behind + 20)
    back = [step for step in ranks[2].steps if step > behind + 20]
    assert back, "it never took part again"
    for step in sorted(set(back) & ranks[0].steps.keys()):
        np.testing.assert_array_equal(ranks[2].steps[step][0], ranks[0].steps[step][0], err_msg=f"after step {step}")
    assert equal_where_both_are(ranks[0], ranks[1]) > 20


def test_a_rank_that_is_killed_costs_nothing_but_its_data_and_can_be_started_again(tmp_path: Path) -> None:
    with training(tmp_path) as (server, ranks):
        for rank in ranks:
            rank.wait_for(5)
        os.kill(ranks[2].process.pid or 0, signal.SIGKILL)
        ranks[2].process.join()
        for rank in ranks[:2]:
            rank.wait_for(15)
        assert round(ranks[0].steps[max(ranks[0].steps)][1], 1) == 1.5  # the mean of the other two
        ranks[2] = Rank(2, server.address, tmp_path)
        ranks[2].wait_for(8)
        for rank in ranks[:2]:
            rank.wait_for(4)
        wait_until_it_counts(ranks, min(ranks[2].steps))
        assert all(rank.process.is_alive() for rank in ranks)
    shared = sorted(ranks[2].steps.keys() & ranks[0].steps.keys())
    assert len(shared) >= 3
    for step in shared:
        np.testing.assert_array_equal(ranks[2].steps[step][0], ranks[0].steps[step][0], err_msg=f"after step {step}")
