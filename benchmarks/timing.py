"""Times beside a yardstick, taken in turns, because machines are shared and noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """How long a call takes: as the median of ratios to its yardstick, and in seconds."""

    ratio: float
    seconds: float


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def against(yardstick: Callable[[], object], call: Callable[[], object], repeats: int = 31) -> Timing:
    """Time both in turns, so that a slow spell of the machine hits both."""
    call()
    pairs = [(seconds(yardstick), seconds(call)) for _ in range(repeats)]
    return Timing(statistics.median(own / base for base, own in pairs), statistics.median(own for _, own in pairs))
