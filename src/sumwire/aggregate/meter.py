"""What rounds cost: bytes, seconds by kind of work, and error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = ("encode", "exchange", "add", "decode")


@dataclass(eq=False)
class Meter:
    """Adds up over rounds; one may serve several threads."""

    values: int = 0
    """Coordinates averaged."""
    sent: int = 0
    """Bytes that this rank sent."""
    plain_sent: int = 0
    """Bytes that a ring all-reduce in the tensors' own dtype would have sent."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    """By kind of work; they overlap, so they add up to more than passes."""
    error: float = 0.0
    power: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def time(self, kind: str) -> Iterator[None]:
        start = perf_counter()
        yield
        with self._lock:
            self.seconds[kind] += perf_counter() - start

    def count(self, tensor: Any, sent: int | None, ranks: int) -> None:
        """A round of this tensor is done, for so many bytes (None: it went the plain way)."""
        ring = ring_bytes(tensor, ranks)
        self.add(tensor.numel(), ring if sent is None else sent, ring)

    def add(self, values: int, sent: int, plain: int) -> None:
        """A round of so many coordinates is done, for so many bytes; the plain way would have taken others."""
        with self._lock:
            self.values += values
            self.sent += sent
            self.plain_sent += plain

    def sample(self, mean: NDArray[np.float32], truth: NDArray[np.float32]) -> None:
        """Compare some coordinates of a mean with their exact values."""
        with self._lock:
            self.error += float(np.sum((mean - truth) ** 2, dtype=np.float64))
            self.power += float(np.sum(truth**2, dtype=np.float64))

    @property
    def nmse(self) -> float | None:
        """Squared error of the means over their power, as far as rounds were sampled."""
        return self.error / self.power if self.power > 0 else None

    @property
    def bits_per_value(self) -> float:
        """Bits sent per coordinate; a ring of fp32 sends 64 (n-1)/n."""
        return 8 * self.sent / self.values if self.values else 0.0


def ring_bytes(tensor: Any, ranks: int) -> int:
    """What each rank sends in a ring all-reduce of the tensor."""
    return int(2 * tensor.numel() * tensor.element_size() * (ranks - 1) // ranks)
