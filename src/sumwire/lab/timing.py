"""Times relative to a baseline, measured in turn, because machines are shared and noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

EVICTING = 1 << 29
"""Bytes to read to evict everything else from caches: servers have last-level caches of hundreds of MB."""


@dataclass(frozen=True)
class Timing:
    """Duration of a call: as the median of its ratios to the baseline, and in seconds."""

    ratio: float
    seconds: float


def seconds(call: Callable[[], object], *, cold: bool = False) -> float:
    """Duration of one call; with `cold`, on data that is in no cache, like the gradients of a training step."""
    if cold:
        _other_data().max()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def against(
    baseline: Callable[[], object], call: Callable[[], object], repeats: int = 31, *, cold: bool = True
) -> Timing:
    """Time both in turn, so that a slow spell of the machine affects both."""
    call()
    pairs = [(seconds(baseline, cold=cold), seconds(call, cold=cold)) for _ in range(repeats)]
    return Timing(statistics.median(own / base for base, own in pairs), statistics.median(own for _, own in pairs))


@cache
def _other_data() -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.ones(EVICTING // 8, np.uint64)
