"""Memory that rounds borrow and give back."""

from __future__ import annotations

from queue import SimpleQueue

from sumwire.kernels.buffers import Slot

__all__ = ["Slot", "Slots"]


class Slots:
    """As many slots as rounds may be under way; who wants one more waits."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[Slot] = SimpleQueue()
        for _ in range(count):
            self._free.put(Slot())

    def borrow(self) -> Slot:
        return self._free.get()

    def give_back(self, slot: Slot) -> None:
        self._free.put(slot)
