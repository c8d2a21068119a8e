"""How many threads the kernels use, and the pool that lends them.

Kernels release the GIL, so ordinary Python threads do. By default Sumwire takes as many as torch or
OpenMP were told to use in this process, else one per core that it may run on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from sumwire.errors import ConfigError

WORTH_A_THREAD = 1 << 18
"""Coordinates: below this a thread costs more than it saves."""

MAX_THREADS = 256

_lock = threading.Lock()
_chosen: int | None = None
_pool: ThreadPoolExecutor | None = None


def set_threads(count: int | None) -> int | None:
    """Use so many threads per call from now on; None means the default. Returns what was set before.

    >>> before = set_threads(2)
    >>> get_threads()
    2
    >>> set_threads(before)
    2
    """
    global _chosen
    if count is not None and (type(count) is not int or not 1 <= count <= MAX_THREADS):
        raise ConfigError(f"threads={count} is not in 1..{MAX_THREADS}; None means the default")
    before, _chosen = _chosen, count
    return before


def get_threads() -> int:
    """Threads that a call on a large tensor uses.

    >>> get_threads() >= 1
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
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pieces(size: int) -> int:
    """In how many pieces a tensor of this size is worth cutting."""
    return max(1, min(get_threads(), size // WORTH_A_THREAD)) if size >= 2 * WORTH_A_THREAD else 1


def run(jobs: Sequence[Callable[[], int]]) -> list[int]:
    """Run the jobs side by side, the first on this thread; results in order."""
    if len(jobs) == 1:
        return [jobs[0]()]
    futures = [_executor().submit(job) for job in jobs[1:]]
    try:
        first = jobs[0]()
    finally:  # no kernel may go on writing after the caller has seen an error
        wait(futures)
    return [first, *(future.result() for future in futures)]


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="sumwire")
        return _pool


def _forget_pool() -> None:
    """A forked child has the pool's object but not its threads."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
