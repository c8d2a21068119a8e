"""The solver for lookup tables: which 2**bits of the lattice's values a worker may send.

A rotated coordinate in units of its scale looks like x ~ N(0, 1). It is clamped to [-t, t] and
rounded at random to one of the two neighbors among v_z = (2 * T[z] / g - 1) * t, without bias.
The rounding costs E[(x - lower) * (upper - x)], the clamping E[(|x| - t)^2 ; |x| > t]. Workers'
rounding noise averages out over them, clamping does not when their gradients agree.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.clamping import SMALLEST_RANGE, inside

Floats = NDArray[np.float64]

_NORMAL = NormalDist()
_CLIP_STEP = 2.0**-20
"""Ranges are multiples of this, so that every platform's libm leads to the same one."""


def clip_for(probability: float) -> float:
    """t such that a standard normal leaves [-t, t] with this probability.

    >>> round(clip_for(1 / 32), 4)
    2.1539
    """
    return _NORMAL.inv_cdf(1.0 - probability / 2.0)


def on_raster(clip: float) -> float:
    """The nearest range that every platform agrees on."""
    return round(clip / _CLIP_STEP) * _CLIP_STEP


def phi(x: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))


def cdf(x: Floats) -> Floats:
    flat = [0.5 * math.erfc(-v / math.sqrt(2.0)) for v in x.reshape(-1).tolist()]
    return np.array(flat).reshape(x.shape)


def _cell_costs(points: Floats, width: int) -> Floats:
    """cost[j, w - 1]: error of rounding x to points j - w and j when it lies between them."""
    p0, density = cdf(points), phi(points)
    p1 = -density
    p2 = p0 - points * density
    n = len(points)
    cost = np.full((n, width), np.inf)
    for w in range(1, min(width, n - 1) + 1):
        a, b = points[:-w], points[w:]
        i0, i1, i2 = p0[w:] - p0[:-w], p1[w:] - p1[:-w], p2[w:] - p2[:-w]
        cost[w:, w - 1] = np.maximum((a + b) * i1 - i2 - a * b * i0, 0.0)
    return cost


def uniform(bits: int, granularity: int) -> tuple[int, ...]:
    """2**bits lattice values, as evenly spaced as the lattice allows."""
    top = (1 << bits) - 1
    return tuple((2 * z * granularity + top) // (2 * top) for z in range(top + 1))


@lru_cache(maxsize=4096)
def solve(bits: int, granularity: int, clip: float) -> tuple[int, ...]:
    """The table of least rounding error, by dynamic programming over its entries.

    best[k][j] is the least error up to lattice value j with k cells. No symmetry is assumed. The
    search tries cells up to some width, and wider ones if a cell of the result is that wide.

    >>> solve(2, 9, 2.5)
    (0, 3, 6, 9)
    """
    cells = (1 << bits) - 1
    if granularity <= cells:
        return tuple(range(cells + 1))
    points = (2.0 * np.arange(granularity + 1) / granularity - 1.0) * clip
    width = min(granularity, 6 * -(-granularity // cells))
    while True:
        table = _shortest(_cell_costs(points, width), cells)
        if width == granularity or (table and max(np.diff(table)) < width):
            return table
        width = min(granularity, 2 * width)


def _shortest(cost: Floats, cells: int) -> tuple[int, ...]:
    """The cheapest path from value 0 to the last in exactly `cells` cells, or () if there is none."""
    n, width = cost.shape
    back = np.arange(n)[:, None] - np.arange(1, width + 1)[None, :]
    cost = np.where(back >= 0, cost, np.inf)
    back = np.maximum(back, 0)
    best = np.full(n, np.inf)
    best[0] = 0.0
    came = np.empty((cells, n), dtype=np.int64)
    rows = np.arange(n)
    for k in range(cells):
        through = best[back] + cost
        choice = through.argmin(axis=1)
        came[k] = back[rows, choice]
        best = through[rows, choice]
    if not np.isfinite(best[-1]):
        return ()
    path = [n - 1]
    for k in reversed(range(cells)):
        path.append(int(came[k, path[-1]]))
    return tuple(reversed(path))


def rounding_error(table: tuple[int, ...], clip: float) -> float:
    """E[(x - lower)(upper - x)] of one worker, x ~ N(0, 1) inside the range.

    >>> published = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
    >>> round(rounding_error(published, clip_for(1 / 32)), 5)
    0.01307
    """
    points = (2.0 * np.array(table) / table[-1] - 1.0) * clip
    return float(_cell_costs(points, 1)[1:, 0].sum())


def clip_error(clip: float) -> float:
    """E[(|x| - t)^2 ; |x| > t] of one worker.

    >>> round(clip_error(clip_for(1 / 32)), 5)
    0.00727
    """
    tail = 0.5 * math.erfc(clip / math.sqrt(2.0))
    density = math.exp(-0.5 * clip * clip) / math.sqrt(2.0 * math.pi)
    return 2.0 * ((1.0 + clip * clip) * tail - clip * density)


def _shared_clip_error(clip: float, correlation: float, left: float) -> float:
    """E[c(x) c(x')] of two workers with this correlation, c(x) being x less what clamping leaves, over `left`."""
    if correlation <= 0.0:
        return 0.0
    if correlation >= 1.0:
        return (clip_error(clip) - (1.0 - left) ** 2) / left**2
    z = np.linspace(-7.0, 7.0, 141)
    mean, sigma = math.sqrt(correlation) * z, math.sqrt(1.0 - correlation)
    above, below = (mean - clip) / sigma, (mean + clip) / sigma
    cut = sigma * (above * cdf(above) + phi(above)) - sigma * (phi(below) - below * cdf(-below))
    lost = (cut - (1.0 - left) * mean) / left
    return float((lost * lost * phi(z)).sum() * (z[1] - z[0]))


def _stratified_ratio(width: Floats, workers: int, correlation: float) -> Floats:
    """Variance of the mean's rounding error against independent rounding, by cell width.

    Worker r rounds with frac(U + r/n). Averaged over where a coordinate lies in its cell, two
    workers' errors correlate as the Bernoulli polynomial of their distance d plus (r - q)/n cells:
    sum_k cos(2 pi k d) / (2 pi^2 k^2), and d is Gaussian. Only multiples of n survive the sum over
    ranks: (1 + 1/n)/2 when gradients are unrelated, 1/n when they are equal.
    """
    k = np.arange(1, 41)
    weight = 1.0 / (2.0 * (np.pi * k) ** 2)
    spread = 4.0 * (1.0 - correlation) / (width * width)[:, None]
    one = np.exp(-((np.pi * k) ** 2) * spread) @ weight
    many = np.exp(-((np.pi * k * workers) ** 2) * spread) @ weight
    ratio = 6.0 * (1.0 / (12.0 * workers) + 1.0 / 12.0 - one + many / workers)
    return np.asarray(np.maximum(ratio, 1.0 / workers))


def _unequal_cells(points: Floats, width: Floats, correlation: float) -> float:
    """E[h^2] - E[h h'] of the cell widths in which two workers find themselves.

    Workers in cells of unequal width cannot cancel each other's errors in full.
    """
    square = float(width**2 @ np.diff(cdf(points)))
    if correlation >= 1.0:
        return 0.0
    if correlation <= 0.0:
        return square - float(width @ np.diff(cdf(points))) ** 2
    z = np.linspace(-4.0, 4.0, 33)
    given = (points[None, :] - math.sqrt(correlation) * z[:, None]) / math.sqrt(1.0 - correlation)
    mean = np.diff(cdf(given), axis=1) @ width
    return square - float((mean * mean) @ phi(z)) * float(z[1] - z[0])


def mean_error(
    table: tuple[int, ...], clip: float, workers: int, *, correlation: float, stratified: bool, unbiased: bool
) -> float:
    """Predicted squared error of the mean per coordinate, for x_r ~ N(0, 1) with this correlation.

    If `unbiased`, what clamping leaves is divided by its share.
    """
    left = inside(clip) if unbiased else 1.0
    points = (2.0 * np.array(table) / table[-1] - 1.0) * clip
    width, cost = np.diff(points), _cell_costs(points, 1)[1:, 0]
    noise = float(cost.sum())
    if stratified:
        noise = float(cost @ _stratified_ratio(width, workers, correlation))
        noise += (1.0 - 1.0 / workers) / 12.0 * _unequal_cells(points, width, correlation)
    clipped = _shared_clip_error(clip, 1.0, left) / workers
    clipped += (1.0 - 1.0 / workers) * _shared_clip_error(clip, correlation, left)
    return noise / (workers * left**2) + clipped


def mean_power(workers: int, correlation: float) -> float:
    """E[mean^2] per coordinate: what errors are relative to."""
    return (1.0 + (workers - 1) * correlation) / workers


@lru_cache(maxsize=4096)
def best_clip(bits: int, granularity: int, workers: int, stratified: bool, even: bool, unbiased: bool) -> float:
    """The range that serves unrelated and similar gradients best: least product of both errors.

    What clamping does to similar gradients does not average out over workers while rounding noise does, so it grows
    with them.
    """

    def loss(clip: float) -> float:
        table = uniform(bits, granularity) if even else solve(bits, granularity, clip)
        given = {"stratified": stratified, "unbiased": unbiased}
        return math.prod(mean_error(table, clip, workers, correlation=rho, **given) for rho in (0.0, 0.9))

    # The loss has one minimum and is flat there: walk to it, then lay a parabola through three points.
    step = 0.35
    clip = 0.9 + 0.5 * bits
    here, right = loss(clip), loss(clip + step)
    if right < here:
        left, here, clip, right = here, right, clip + step, loss(clip + 2 * step)
        while right < here:
            left, here, clip, right = here, right, clip + step, loss(clip + 2 * step)
    else:
        left = loss(clip - step)
        while left < here and clip > 2 * step:
            right, here, clip, left = here, left, clip - step, loss(clip - 2 * step)
    bend = math.log(left) - 2.0 * math.log(here) + math.log(right)
    clip += step * 0.5 * (math.log(left) - math.log(right)) / bend if bend > 0.0 else 0.0
    return on_raster(max(clip, SMALLEST_RANGE) if unbiased else clip)
