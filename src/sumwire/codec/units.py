"""Runs of units: what `lo..hi` counts."""

from __future__ import annotations

from itertools import pairwise

from sumwire.codec.algebra import Span


def runs_of(lo: int, hi: int, step: int) -> list[Span]:
    """lo..hi in runs of `step`."""
    return list(pairwise([*range(lo, hi, step), hi])) if lo < hi else []
