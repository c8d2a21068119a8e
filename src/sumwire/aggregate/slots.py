"""Memory that rounds borrow and give back."""

from __future__ import annotations

from queue import SimpleQueue

from sumwire.kernels.buffers import Buffers

__all__ = ["Buffers", "Slots"]


class Slots:
    """As many slots as rounds may be under way; who wants one more waits."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[Buffers] = SimpleQueue()
        for _ in range(count):
            self._free.put(Buffers())

    def borrow(self) -> Buffers:
        return self._free.get()

    def give_back(self, buffers: Buffers) -> None:
        self._free.put(buffers)
