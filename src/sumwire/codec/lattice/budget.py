"""How a budget for both directions is split: bits of payloads, and of sums, by the error that each split makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sumwire.codec.lattice import family as families
from sumwire.codec.lattice import table as tables
from sumwire.codec.lattice.narrow import LEAST_BITS, added_error
from sumwire.errors import ConfigError

_ABOUT_EQUAL = 1.25
"""Of splits whose errors differ by less, the one with more bits down: where gradients are alike, it makes half the
error."""


@dataclass(frozen=True)
class Split:
    """Bits per value of payloads and of sums, and the width of lanes if these travel."""

    bits: int
    down_bits: float | Literal["exact"]
    lane_bits: int | None
    error: float
    """Squared error of the mean over its power, of unrelated Gaussian gradients, which compression hurts most."""


def split_total(
    workers: int,
    total_bits: int,
    widths: Sequence[int],
    *,
    even: bool,
    stratified: bool,
    unbiased: bool,
    narrow: bool,
) -> Split:
    """The split of least error; sums may be narrowed if `narrow`."""
    found: list[Split] = []
    for bits in widths:
        found += _exact(workers, total_bits, bits, even, stratified, unbiased)
        if narrow:
            found += _narrowed(workers, total_bits, bits, even, stratified, unbiased)
    if not found:
        need = widths[0] + (LEAST_BITS if narrow else (workers * ((1 << widths[0]) - 1)).bit_length())
        raise ConfigError(
            f"total_bits={total_bits} is too few for {workers} workers: a {widths[0]}-bit index and its "
            f"sums need {need}; pass total_bits={need} or more"
        )
    least = min(split.error for split in found)
    return min((split for split in found if split.error <= least * _ABOUT_EQUAL), key=lambda s: (s.bits, s.error))


def _exact(workers: int, total: int, bits: int, even: bool, stratified: bool, unbiased: bool) -> Iterator[Split]:
    """Lanes, as fine as fit."""
    lane_bits = min(total - bits, families.MAX_LANE_BITS)
    fits = ((1 << lane_bits) - 1) // workers if lane_bits > 0 else 0
    least = (1 << bits) - 1
    if fits >= least:
        granularity = least if even else families.looked_up(bits, fits)
        error = _up_error(workers, bits, granularity, stratified, unbiased)
        yield Split(bits, "exact", (workers * granularity).bit_length(), error)


def _narrowed(workers: int, total: int, bits: int, even: bool, stratified: bool, unbiased: bool) -> Iterator[Split]:
    """Sums of the finest lattice, quantized again."""
    granularity = families.finest(workers, bits, even)
    lanes = (workers * granularity).bit_length()
    if LEAST_BITS <= total - bits < lanes:
        up = _up_error(workers, bits, granularity, stratified, unbiased)
        yield Split(bits, float(total - bits), None, up + (1 + up) * added_error(total - bits, lanes))


def _up_error(workers: int, bits: int, granularity: int, stratified: bool, unbiased: bool) -> float:
    even = granularity == (1 << bits) - 1
    clip = tables.best_clip(bits, granularity, workers, stratified, even, unbiased)
    values = tables.uniform(bits, granularity) if even else tables.solve(bits, granularity, clip)
    error = tables.mean_error(values, clip, workers, correlation=0.0, stratified=stratified, unbiased=unbiased)
    return error / tables.mean_power(workers, 0.0)
