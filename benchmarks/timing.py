"""Times beside a yardstick, taken in turns, because machines are shared and noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How a call compares with its yardstick: median of paired ratios, and their quartiles."""

    median: float
    low: float
    high: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def against(yardstick: Callable[[], object], call: Callable[[], object], repeats: int = 31) -> Ratio:
    """Time both in turns, so that a slow spell of the machine hits both."""
    call()
    pairs = [(seconds(yardstick), seconds(call)) for _ in range(repeats)]
    ratios = [own / base for base, own in pairs]
    low, median, high = statistics.quantiles(ratios, n=4)
    return Ratio(median, low, high, statistics.median(own for _, own in pairs))
