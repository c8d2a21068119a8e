"""Memory that is reused, because fresh pages cost more than the arithmetic."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Buffers:
    """Named buffers that only grow."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, size: int, dtype: DTypeLike = np.uint8) -> NDArray[Any]:
        """`size` elements, with whatever they held before."""
        kind = np.dtype(dtype)
        held = self._buffers.get(name)
        if held is None or held.nbytes < size * kind.itemsize:
            # A little more than asked for: payloads of the same tensor vary from round to round.
            held = self._buffers[name] = np.empty(size * kind.itemsize * 9 // 8 + 64, np.uint8)
        return held[: size * kind.itemsize].view(kind)

    @property
    def nbytes(self) -> int:
        return sum(held.nbytes for held in self._buffers.values())


_local = threading.local()


def thread_buffers() -> Buffers:
    """Scratch memory of the calling thread, kept for its next call."""
    if not hasattr(_local, "buffers"):
        _local.buffers = Buffers()
    buffers: Buffers = _local.buffers
    return buffers
