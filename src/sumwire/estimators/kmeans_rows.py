"""What k-means does with the rows of one partition."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sumwire.estimators.exchange import Share
from sumwire.estimators.tiles import TILE_VALUES, Floats, Rows, steady, tiles

Labels = NDArray[np.int32]

ACCURACY = 2.0**-30
"""Relative error of squared distances by matrix product, at most: those that could have more are found directly."""


@steady
def assign(rank: int, rows: Rows, centers: Floats, centered: bool) -> Share:
    """Each row to the nearest center. Exact: how many each center has, and the inertia. The vector: sums over the rows
    of each center; of rows minus center if `centered`, else of rows.

    Differences are added up as they are; subtracting count x center from a sum would lose digits.
    """
    sums, counts, inertia = np.zeros_like(centers), np.zeros(len(centers)), 0.0
    for place, labels in _labels(rows, centers):
        apart = np.subtract(rows[place], centers[labels], dtype=np.float64, order="C")
        inertia += float(np.vdot(apart, apart))
        counts += np.bincount(labels, minlength=len(centers))
        belongs = (labels == np.arange(len(centers))[:, None]).astype(np.float64)
        sums += belongs @ apart
    return Share(np.append(counts, inertia), sums if centered else sums + counts[:, None] * centers)


def nearest(rows: Rows, centers: Floats) -> Labels:
    """Which center is nearest to each row; the first of several.

    >>> nearest(np.array([[0.0], [1.0], [9.0]]), np.array([[0.0], [8.0]]))
    array([0, 0, 1], dtype=int32)
    """
    labels = np.empty(len(rows), np.int32)
    for place, found in _labels(rows, centers):
        labels[place] = found
    return labels


def squares(rows: Rows, centers: Floats) -> Floats:
    """The squared distance of each row to its nearest center.

    >>> squares(np.array([[0.0], [1.0], [9.0]]), np.array([[0.0], [8.0]]))
    array([0., 1., 1.])
    """
    found = np.empty(len(rows))
    for place, labels in _labels(rows, centers):
        found[place] = _squared(np.subtract(rows[place], centers[labels], dtype=np.float64))
    return found


def distances(rows: Rows, centers: Floats) -> Floats:
    """The distance of each row to each center.

    >>> distances(np.array([[0.0, 3.0]]), np.array([[0.0, 0.0], [4.0, 0.0]]))
    array([[3., 5.]])
    """
    found = np.empty((len(rows), len(centers)))
    middle, moved = _about_middle(centers)
    for place, tile in tiles(rows, middle, width=len(centers)):
        sizes = _squared(tile)[:, None] + _squared(moved)
        apart = sizes - 2 * (tile @ moved.T)
        vague = apart * ACCURACY <= _rounding(centers) * sizes
        apart[vague] = _directly(rows[place], centers, vague)
        found[place] = np.sqrt(apart)
    return found


def _labels(rows: Rows, centers: Floats) -> Iterator[tuple[slice, Labels]]:
    """Places of tiles, and the nearest centers there: by matrix product, and directly where its rounding could decide.

    Law: the row t and the center m are near by t.m - |m|^2 / 2, to within `_rounding` x (|t|^2 + |m|^2).
    """
    middle, moved = _about_middle(centers)
    sizes, rounding = _squared(moved), _rounding(centers)
    # As near as each center may be at most, but for the |t|^2, which is the same for all of them.
    handicap = (0.5 - rounding) * sizes
    for place, tile in tiles(rows, middle, width=len(centers)):
        nearness = tile @ moved.T - handicap
        labels = nearness.argmax(axis=1)
        best = np.take_along_axis(nearness, labels[:, None], axis=1)[:, 0]
        rivals = nearness >= (best - 2 * rounding * (sizes[labels] + _squared(tile)))[:, None]
        close = np.flatnonzero(np.count_nonzero(rivals, axis=1) > 1)
        step = max(1, TILE_VALUES // 8 // len(centers))
        for some in (close[start : start + step] for start in range(0, close.size, step)):
            apart = np.full((some.size, len(centers)), np.inf)
            apart[rivals[some]] = _directly(rows[place][some], centers, rivals[some])
            labels[some] = apart.argmin(axis=1)
        yield place, labels.astype(np.int32)


def _about_middle(centers: Floats) -> tuple[Floats, Floats]:
    """A new origin, and the centers from there: products of vectors that are long beside their difference cancel badly.

    The median, as one center far away must not draw it away from all the others.
    """
    middle = np.median(centers, axis=0)
    return middle, centers - middle


def _rounding(centers: Floats) -> float:
    """What a sum of products over all features may be wrong by, as a share: half a last place for each of its steps."""
    return math.ldexp(centers.shape[1] + 16, -53)


def _directly(rows: Rows, centers: Floats, pairs: NDArray[np.bool_]) -> Floats:
    """Squared distances of those pairs of a row and a center, in order, by their differences."""
    places = np.flatnonzero(pairs)
    found = np.empty(len(places))
    step = max(1, TILE_VALUES // 4 // max(1, centers.shape[1]))
    for start in range(0, len(places), step):
        some = slice(start, start + step)
        row, center = np.divmod(places[some], len(centers))
        found[some] = _squared(np.subtract(rows[row], centers[center], dtype=np.float64))
    return found


def _squared(vectors: Floats) -> Floats:
    """The square of each one's length."""
    found: Floats = np.einsum("ij,ij->i", vectors, vectors)
    return found
