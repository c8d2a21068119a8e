"""Does compressing pay on this link? Measured in the first steps, decided by all ranks alike."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from time import perf_counter

from sumwire.aggregate.group.cost import break_even
from sumwire.aggregate.statistics import Statistics

STEPS = 3
"""Compressed steps that are timed."""


class Stopwatch:
    """Seconds during which at least one round was in flight."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._in_flight = 0
        self._since = 0.0
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if self._in_flight == 0:
                self._since = perf_counter()
            self._in_flight += 1

    def stop(self) -> None:
        with self._lock:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.seconds += perf_counter() - self._since


@dataclass(eq=False)
class Trial:
    """Times of plain and of compressed steps, until there are enough to tell; then a verdict, once."""

    plain: list[float] = field(default_factory=list)
    coded: list[float] = field(default_factory=list)
    codec_seconds: list[float] = field(default_factory=list)
    saved_bits: float = 0.0
    done: bool = False
    """A verdict was reached."""

    def record(self, seconds: float, statistics: Statistics, *, coded: bool) -> None:
        if self.complete or self.done:
            return
        (self.coded if coded else self.plain).append(seconds)
        if coded:
            self.codec_seconds.append(sum(v for kind, v in statistics.seconds.items() if kind != "exchange"))
            self.saved_bits = 8.0 * (statistics.plain_sent - statistics.sent)

    @property
    def complete(self) -> bool:
        """Whether there are figures to compare; the same at all ranks, as it depends on steps alone."""
        return bool(self.plain) and len(self.coded) >= STEPS

    def figures(self) -> list[float]:
        """Seconds of a plain and a compressed step, and of the codec alone: the best of each, as others interfere."""
        return [min(self.plain), min(self.coded), min(self.codec_seconds)]

    def verdict(self, plain: float, coded: float, codec: float) -> tuple[bool, str]:
        """Whether it pays, and a sentence that says so."""
        self.done = True
        rate = break_even(self.saved_bits, codec)
        times = f"{1e3 * coded:.1f} ms per step, {1e3 * plain:.1f} ms without"
        limit = f"break-even at links of {rate / 1e9:.2g} Gbit/s"
        pays = coded <= plain
        return pays, f"compression {'pays' if pays else 'does not pay'} here: gradients take {times} ({limit})"
