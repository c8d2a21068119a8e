"""How many threads the kernels use, and the pool that runs them.

Kernels release the GIL, so ordinary Python threads suffice. The default is the number that torch or OpenMP was told to
use in this process, otherwise one per core that the process may run on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import pairwise
from typing import TypeVar

from sumwire.errors import ConfigError

T = TypeVar("T")

WORTH_A_THREAD = 1 << 18
"""Coordinates per thread: below this, a thread costs more than it saves."""

MAX_THREADS = 256

_PIECES_PER_THREAD = 2

_lock = threading.Lock()
_chosen: int | None = None
_pool: ThreadPoolExecutor | None = None


def set_num_threads(count: int | None) -> int | None:
    """Use `count` threads per call from now on; None means the default. Returns what was set before.

    >>> before = set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(before)
    2
    """
    global _chosen
    if count is not None and (type(count) is not int or not 1 <= count <= MAX_THREADS):
        raise ConfigError(f"threads={count} is not an integer in 1..{MAX_THREADS}; None means the default")
    before, _chosen = _chosen, count
    return before


def get_num_threads() -> int:
    """Threads that a call on a large tensor uses.

    >>> get_num_threads() >= 1
    True
    """
    if _chosen is not None:
        return _chosen
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return max(1, min(MAX_THREADS, int(torch.get_num_threads())))
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if told.isdigit() and int(told) > 0:
        return min(int(told), MAX_THREADS)
    return get_num_cores()


def get_num_cores() -> int:
    """Cores that this process may use.

    >>> get_num_cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pieces(size: int) -> int:
    """The number of pieces that a tensor of this size is worth cutting into.

    There are more of them than threads, so that a core which is busy with something else takes fewer.
    """
    most = size // WORTH_A_THREAD
    if most < 2:
        return 1
    count = get_num_threads()
    return 1 if count == 1 else min(_PIECES_PER_THREAD * count, most)


def run(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run the jobs on all threads, this one among them; results in order."""
    if len(jobs) == 1:
        return [jobs[0]()]
    results: dict[int, T] = {}
    left = deque(enumerate(jobs))

    def work() -> None:
        while True:
            try:
                index, job = left.popleft()
            except IndexError:
                return
            results[index] = job()

    futures = [_executor().submit(work) for _ in range(min(get_num_threads(), len(jobs)) - 1)]
    try:
        work()
    finally:  # no kernel may go on writing after the caller has seen an error
        left.clear()
        wait(futures)
    for future in futures:
        future.result()
    return [results[index] for index in range(len(jobs))]


def run_between(edges: Sequence[int], work: Callable[[int, int], T]) -> list[T]:
    """work(a, b) for each two neighboring edges, as `run` does."""
    return run([partial(work, a, b) for a, b in pairwise(edges)])


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="sumwire")
        return _pool


def _forget_pool() -> None:
    """A forked child inherits the pool but not its threads."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
