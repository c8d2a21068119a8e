"""Functions of k-means that run on the rows of one partition."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sumwire.estimators.exchange import Share
from sumwire.estimators.tiles import TILE_VALUES, Floats, Rows, single_blas_thread, tiles

Labels = NDArray[np.int32]

ACCURACY = 2.0**-30
"""Maximum relative error of squared distances by matrix product; less accurate ones are recomputed directly."""


@single_blas_thread
def assign(rank: int, rows: Rows, weights: Floats | None, centers: Floats, centered: bool) -> Share:
    """Assign each row to the nearest center. Exact: the weight of the rows of each center, and the inertia. The vector:
    the weighted sum of the rows of each center, minus the center if `centered`. Without weights, each row weighs 1.

    Differences are summed directly, because subtracting count x center from a sum would lose digits.
    """
    sums, counts, inertia = np.zeros_like(centers), np.zeros(len(centers)), 0.0
    for place, labels in _labels(rows, centers):
        apart = np.subtract(rows[place], centers[labels], dtype=np.float64, order="C")
        belongs = (labels == np.arange(len(centers))[:, None]).astype(np.float64)
        if weights is None:
            inertia += float(np.vdot(apart, apart))
            counts += np.bincount(labels, minlength=len(centers))
        else:
            inertia += float(_squared(apart) @ weights[place])
            counts += np.bincount(labels, weights[place], minlength=len(centers))
            belongs *= weights[place]
        sums += belongs @ apart
    return Share(np.append(counts, inertia), sums if centered else sums + counts[:, None] * centers)


def nearest(rows: Rows, centers: Floats) -> Labels:
    """Index of the center nearest to each row; the first one in case of ties.

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
        inaccurate = apart * ACCURACY <= _rounding(centers) * sizes
        apart[inaccurate] = _directly(rows[place], centers, inaccurate)
        found[place] = np.sqrt(apart)
    return found


def _labels(rows: Rows, centers: Floats) -> Iterator[tuple[slice, Labels]]:
    """Slices of tiles with the nearest centers: by matrix product, and directly where rounding could decide.

    Law: the nearness of row t and center m is t.m - |m|^2 / 2, to within `_rounding` x (|t|^2 + |m|^2).
    """
    middle, moved = _about_middle(centers)
    sizes, rounding = _squared(moved), _rounding(centers)
    # Makes nearness an upper bound, up to a multiple of |t|^2, which is the same for all centers.
    offset = (0.5 - rounding) * sizes
    for place, tile in tiles(rows, middle, width=len(centers)):
        nearness = tile @ moved.T - offset
        labels = nearness.argmax(axis=1)
        best = np.take_along_axis(nearness, labels[:, None], axis=1)[:, 0]
        candidates = nearness >= (best - 2 * rounding * (sizes[labels] + _squared(tile)))[:, None]
        close = np.flatnonzero(np.count_nonzero(candidates, axis=1) > 1)
        step = max(1, TILE_VALUES // 8 // len(centers))
        for some in (close[start : start + step] for start in range(0, close.size, step)):
            apart = np.full((some.size, len(centers)), np.inf)
            apart[candidates[some]] = _directly(rows[place][some], centers, candidates[some])
            labels[some] = apart.argmin(axis=1)
        yield place, labels.astype(np.int32)


def _about_middle(centers: Floats) -> tuple[Floats, Floats]:
    """A new origin, and the centers relative to it: far from the origin, matrix products suffer from cancellation.

    The origin is the median, which a single distant center does not move.
    """
    middle = np.median(centers, axis=0)
    return middle, centers - middle


def _rounding(centers: Floats) -> float:
    """Relative error bound of a sum of products over all features: half an ulp per operation."""
    return math.ldexp(centers.shape[1] + 16, -53)


def _directly(rows: Rows, centers: Floats, pairs: NDArray[np.bool_]) -> Floats:
    """Squared distances of the given pairs of row and center, in order, computed from differences."""
    places = np.flatnonzero(pairs)
    found = np.empty(len(places))
    step = max(1, TILE_VALUES // 4 // max(1, centers.shape[1]))
    for start in range(0, len(places), step):
        some = slice(start, start + step)
        row, center = np.divmod(places[some], len(centers))
        found[some] = _squared(np.subtract(rows[row], centers[center], dtype=np.float64))
    return found


def _squared(vectors: Floats) -> Floats:
    """The squared norm of each vector."""
    found: Floats = np.einsum("ij,ij->i", vectors, vectors)
    return found
