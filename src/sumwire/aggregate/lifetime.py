"""Ends what holds threads and sockets: on request, with its owner, or with the process.

A garbage collector runs anywhere, under any lock, and at other times on other ranks. So a finalizer here only puts a
word into a queue; a thread that has waited for it does the work, which needs no other rank.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

_log = logging.getLogger(__name__)

_PATIENCE_AT_EXIT = 5.0
"""Seconds that rounds in flight, and then the rest, may take when the process ends."""

End = Callable[[float | None], None]
"""Ends everything; waits up to this many seconds for rounds in flight (None: as long as they take)."""


class Lifetime:
    """Calls `end` once: when `close` is called, the owner is garbage-collected, or the process exits.

    `end` must not refer to the owner, which would then live forever. Cost: one thread that sleeps.
    """

    def __init__(self, owner: object, end: End, name: str) -> None:
        self._waiter = _Waiter(end, name)
        self._waiter.start()
        self.follow(owner)

    def follow(self, *owners: object) -> None:
        """End also when all of these are gone."""
        left, ask = list(range(len(owners))), self._waiter.ask

        def gone() -> None:
            left.pop()
            if not left:
                ask()

        for owner in owners:
            # Not the finalizer's own hook at exit: its place among the others depends on who else uses finalizers.
            weakref.finalize(owner, gone).atexit = False

    def close(self, timeout: float | None = None) -> None:
        """End now; wait until that is done, or for `timeout` seconds."""
        self._waiter.ask(timeout)
        self._waiter.join(timeout)


class _Waiter(threading.Thread):
    def __init__(self, end: End, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._end: End | None = end
        self._words: SimpleQueue[float | None] = SimpleQueue()
        self._process = os.getpid()
        atexit.register(self._at_exit)

    def ask(self, patience: float | None = None) -> None:
        """Only this may be called from a finalizer: `SimpleQueue.put` is made for that."""
        self._words.put(patience)

    def run(self) -> None:
        patience = self._words.get()
        end, self._end = self._end, None  # whoever still knows this thread does not hold what it has ended
        try:
            if end is not None:
                end(patience)
        except Exception:
            _log.debug("closing failed", exc_info=True)  # the process or its groups are going down already
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        # Threads of ours or of gloo that still hold tensors while the interpreter goes down would abort the process.
        if os.getpid() == self._process:  # in a forked child, none of the threads is there
            self.ask(_PATIENCE_AT_EXIT)
            self.join(5 * _PATIENCE_AT_EXIT)
