"""What ends with its owner: once, in another thread, whoever lets go first."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from queue import Queue
from typing import Any

import numpy as np

import sumwire
from sumwire.aggregate.lifetime import Lifetime
from sumwire.aggregate.local import Local
from sumwire.aggregate.round import Round
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.errors import RoundError


class Owner:
    """Something that can be referred to weakly."""


def watched(owner: object) -> tuple[Lifetime, Queue[Any]]:
    ends: Queue[Any] = Queue()
    return Lifetime(owner, lambda patience: ends.put((patience, threading.current_thread())), "test"), ends


def test_it_ends_when_its_owner_is_collected() -> None:
    owner: Any = Owner()
    owner.itself = owner
    _, ends = watched(owner)
    del owner
    gc.collect()
    patience, thread = ends.get(timeout=10)
    assert patience is None
    assert thread is not threading.current_thread()
    thread.join()
    assert ends.empty()


def test_it_ends_when_the_last_of_several_followed_is_gone() -> None:
    owner, first, second = Owner(), Owner(), Owner()
    life, ends = watched(owner)
    life.follow(first, second)
    del first
    assert ends.empty()
    del second
    ends.get(timeout=10)
    del owner
    life.close()
    assert ends.empty()


def test_it_is_closed_once_and_closing_waits() -> None:
    owner = Owner()
    life, ends = watched(owner)
    life.close()
    assert ends.qsize() == 1
    life.close()
    assert ends.qsize() == 1


def test_closing_need_not_wait() -> None:
    owner, go = Owner(), threading.Event()
    life = Lifetime(owner, lambda patience: bool(go.wait()), "test")
    life.close(timeout=0)
    go.set()
    life.close()


def test_closing_passes_its_timeout_on_and_waits_no_longer() -> None:
    owner, go, told = Owner(), threading.Event(), Queue[float | None]()

    def end(patience: float | None) -> None:
        told.put(patience)
        go.wait()

    life = Lifetime(owner, end, "test")
    closing = threading.Thread(target=life.close, args=(0.2,), daemon=True)
    closing.start()
    try:
        assert told.get(timeout=10) == 0.2
        closing.join(30)
        assert not closing.is_alive()
    finally:
        go.set()
    life.close()


def test_closing_gives_up_a_round_that_another_worker_never_joins() -> None:
    codec = sumwire.Lattice(2)
    here, there = Local.create(2, codec)
    rounds, owner = RoundsInFlight(here), Owner()
    life = Lifetime(owner, rounds.end, "test")
    future = rounds.submit(Round(here, np.ones(8, np.float32), codec, round_id=0))
    life.close(timeout=0.2)
    try:
        assert isinstance(future.exception(timeout=30), RoundError)
    finally:
        there.close()  # else the thread would wait forever


AT_EXIT = """
import os
from sumwire.aggregate.lifetime import Lifetime
class Owner: pass
owner = Owner()
life = Lifetime(owner, lambda patience: print("ended with patience", patience, flush=True), "test")
if os.fork() == 0:
    raise SystemExit  # runs hooks at exit, in a process without the thread
os.wait()
"""


def test_it_ends_with_the_process_but_not_with_a_fork_of_it() -> None:
    job = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True)
    assert job.stdout.split() == ["ended", "with", "patience", "5.0"]
