"""A cache bounded by the bytes it holds, however large its entries are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ByteCache(Generic[P, R]):
    """Calls `make` once per set of arguments and keeps the results while they have at most `limit` bytes in all.

    The least recently used are dropped first. A result that exceeds the limit by itself is never kept.
    """

    def __init__(self, make: Callable[P, R], limit: int, nbytes: Callable[[R], int]) -> None:
        self.limit, self.nbytes = limit, 0
        self._make, self._measure = make, nbytes
        self._held: OrderedDict[object, R] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(sorted(kwargs.items())))
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = self._make(*args, **kwargs)
        size = self._measure(made)
        with self._lock:
            if size <= self.limit and key not in self._held:
                self._held[key] = made
                self.nbytes += size
                while self.nbytes > self.limit:
                    self.nbytes -= self._measure(self._held.popitem(last=False)[1])
        return made

    def __len__(self) -> int:
        return len(self._held)
