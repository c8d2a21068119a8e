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
def assign(rank: int, rows: Rows, centres: Floats, centred: bool) -> Share:
    """Each row to the nearest centre. Exact: how many each centre has, and the inertia. The vector: sums over the rows
    of each centre; of rows minus centre if `centred`, else of rows.

    Differences are added up as they are; subtracting count x centre from a sum would lose digits.
    """
    sums, counts, inertia = np.zeros_like(centres), np.zeros(len(centres)), 0.0
    for place, labels in _labels(rows, centres):
        apart = np.subtract(rows[place], centres[labels], dtype=np.float64, order="C")
        inertia += float(np.vdot(apart, apart))
        counts += np.bincount(labels, minlength=len(centres))
        belongs = (labels == np.arange(len(centres))[:, None]).astype(np.float64)
        sums += belongs @ apart
    return Share(np.append(counts, inertia), sums if centred else sums + counts[:, None] * centres)


def nearest(rows: Rows, centres: Floats) -> Labels:
    """Which centre is nearest to each row; the first of several.

    >>> nearest(np.array([[0.0], [1.0], [9.0]]), np.array([[0.0], [8.0]]))
    array([0, 0, 1], dtype=int32)
    """
    labels = np.empty(len(rows), np.int32)
    for place, found in _labels(rows, centres):
        labels[place] = found
    return labels


def squares(rows: Rows, centres: Floats) -> Floats:
    """The squared distance of each row to its nearest centre.

    >>> squares(np.array([[0.0], [1.0], [9.0]]), np.array([[0.0], [8.0]]))
    array([0., 1., 1.])
    """
    found = np.empty(len(rows))
    for place, labels in _labels(rows, centres):
        found[place] = _squared(np.subtract(rows[place], centres[labels], dtype=np.float64))
    return found


def distances(rows: Rows, centres: Floats) -> Floats:
    """The distance of each row to each centre.

    >>> distances(np.array([[0.0, 3.0]]), np.array([[0.0, 0.0], [4.0, 0.0]]))
    array([[3., 5.]])
    """
    found = np.empty((len(rows), len(centres)))
    middle, moved = _about_middle(centres)
    for place, tile in tiles(rows, middle, width=len(centres)):
        sizes = _squared(tile)[:, None] + _squared(moved)
        apart = sizes - 2 * (tile @ moved.T)
        vague = apart * ACCURACY <= _rounding(centres) * sizes
        apart[vague] = _directly(rows[place], centres, vague)
        found[place] = np.sqrt(apart)
    return found


def _labels(rows: Rows, centres: Floats) -> Iterator[tuple[slice, Labels]]:
    """Places of tiles, and the nearest centres there: by matrix product, and directly where its rounding could decide.

    Law: the row t and the centre m are near by t.m - |m|^2 / 2, to within `_rounding` x (|t|^2 + |m|^2).
    """
    middle, moved = _about_middle(centres)
    sizes, rounding = _squared(moved), _rounding(centres)
    # As near as each centre may be at most, but for the |t|^2, which is the same for all of them.
    handicap = (0.5 - rounding) * sizes
    for place, tile in tiles(rows, middle, width=len(centres)):
        nearness = tile @ moved.T - handicap
        labels = nearness.argmax(axis=1)
        best = np.take_along_axis(nearness, labels[:, None], axis=1)[:, 0]
        rivals = nearness >= (best - 2 * rounding * (sizes[labels] + _squared(tile)))[:, None]
        close = np.flatnonzero(np.count_nonzero(rivals, axis=1) > 1)
        step = max(1, TILE_VALUES // 8 // len(centres))
        for some in (close[start : start + step] for start in range(0, close.size, step)):
            apart = np.full((some.size, len(centres)), np.inf)
            apart[rivals[some]] = _directly(rows[place][some], centres, rivals[some])
            labels[some] = apart.argmin(axis=1)
        yield place, labels.astype(np.int32)


def _about_middle(centres: Floats) -> tuple[Floats, Floats]:
    """A new origin, and the centres from there: products of vectors that are long beside their difference cancel badly.

    The median, as one centre far away must not draw it away from all the others.
    """
    middle = np.median(centres, axis=0)
    return middle, centres - middle


def _rounding(centres: Floats) -> float:
    """What a sum of products over all features may be wrong by, as a share: half a last place for each of its steps."""
    return math.ldexp(centres.shape[1] + 16, -53)


def _directly(rows: Rows, centres: Floats, pairs: NDArray[np.bool_]) -> Floats:
    """Squared distances of those pairs of a row and a centre, in order, by their differences."""
    places = np.flatnonzero(pairs)
    found = np.empty(len(places))
    step = max(1, TILE_VALUES // 4 // max(1, centres.shape[1]))
    for start in range(0, len(places), step):
        some = slice(start, start + step)
        row, centre = np.divmod(places[some], len(centres))
        found[some] = _squared(np.subtract(rows[row], centres[centre], dtype=np.float64))
    return found


def _squared(vectors: Floats) -> Floats:
    """The square of each one's length."""
    found: Floats = np.einsum("ij,ij->i", vectors, vectors)
    return found
