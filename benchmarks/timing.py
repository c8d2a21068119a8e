"""Times beside a yardstick, taken in turns, because machines are shared and noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

EVICTING = 1 << 29
"""Bytes that are read so that caches forget the rest: servers have last-level caches of hundreds of MB."""


@dataclass(frozen=True)
class Timing:
    """How long a call takes: as the median of ratios to its yardstick, and in seconds."""

    ratio: float
    seconds: float


def seconds(call: Callable[[], object], *, cold: bool = False) -> float:
    """Of one call; with `cold`, on data that no cache has, as a training step finds its gradients."""
    if cold:
        _elsewhere().max()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def against(
    yardstick: Callable[[], object], call: Callable[[], object], repeats: int = 31, *, cold: bool = True
) -> Timing:
    """Time both in turns, so that a slow spell of the machine hits both."""
    call()
    pairs = [(seconds(yardstick, cold=cold), seconds(call, cold=cold)) for _ in range(repeats)]
    return Timing(statistics.median(own / base for base, own in pairs), statistics.median(own for _, own in pairs))


@cache
def _elsewhere() -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.ones(EVICTING // 8, np.uint64)
