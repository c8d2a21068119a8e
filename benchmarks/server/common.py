"""What the server's benchmarks share."""

from __future__ import annotations

import multiprocessing
from statistics import median
from typing import Any, NamedTuple

import numpy as np

BITS = 4
LIMIT = 600.0
"""Seconds, until a run is given up."""
DECOMPRESSING = "decompress, add, recompress"

spawn = multiprocessing.get_context("spawn")


def tensor(rank: int, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(rank).standard_normal(size, np.float32)


def span(values: list[float], form: str) -> str:
    return f"{median(values):{form}} [{min(values):{form}} - {max(values):{form}}]"


class Task(NamedTuple):
    """What a worker's process does with a server."""

    address: str
    workers: int
    size: int
    rounds: int
    runs: int
    window: int


def verdict(ratio: float) -> str:
    return f"the bar, 8 times less, is **{'met' if ratio >= 8 else 'missed'}** by this measure"
