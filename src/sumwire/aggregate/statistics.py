"""What rounds cost: bytes, seconds by kind of work, and error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

KINDS = ("encode", "exchange", "add", "decode")


@dataclass(eq=False)
class Statistics:
    """Totals over rounds; threads may share one."""

    values: int = 0
    """Coordinates averaged."""
    sent: int = 0
    """Bytes that this rank sent: terms, payloads, sums, and what was averaged exactly. To a server, no terms."""
    plain_sent: int = 0
    """Bytes that a ring all-reduce in the tensors' own dtype would have sent."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    """By kind of work; they overlap, so they add up to more than the elapsed time."""
    error: float = 0.0
    power: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def time(self, kind: str) -> Iterator[None]:
        """Count the time of a `with` block."""
        start = perf_counter()
        yield
        with self._lock:
            self.seconds[kind] += perf_counter() - start

    def add_sent(self, nbytes: int) -> None:
        """This rank has sent `nbytes` more."""
        with self._lock:
            self.sent += nbytes

    def add_cost(self, other: Statistics) -> None:
        """Count what others of the same round cost, but not their values."""
        with self._lock:
            self.sent += other.sent
            for kind, seconds in other.seconds.items():
                self.seconds[kind] += seconds

    def add_values(self, values: int, plain_sent: int) -> None:
        """A round is done whose plain all-reduce would have sent `plain_sent` bytes."""
        with self._lock:
            self.values += values
            self.plain_sent += plain_sent

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
        """Bits that this rank sent per coordinate; a ring of fp32 sends 64 (n-1)/n."""
        return 8 * self.sent / self.values if self.values else 0.0
