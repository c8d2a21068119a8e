"""What k-means does with the rows of one partition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sumwire.estimators.exchange import Share
from sumwire.estimators.tiles import Floats, Rows, steady, tiles

Labels = NDArray[np.int32]


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
        apart = np.subtract(rows[place], centres[labels], dtype=np.float64)
        found[place] = np.einsum("ij,ij->i", apart, apart)
    return found


def distances(rows: Rows, centres: Floats) -> Floats:
    """The distance of each row to each centre.

    >>> distances(np.array([[0.0, 3.0]]), np.array([[0.0, 0.0], [4.0, 0.0]]))
    array([[3., 5.]])
    """
    found = np.empty((len(rows), len(centres)))
    for place, tile, nearness in _nearness(rows, centres):
        squares = np.einsum("ij,ij->i", tile, tile)[:, None] - 2 * nearness
        found[place] = np.sqrt(np.maximum(squares, 0))
    return found


def _labels(rows: Rows, centres: Floats) -> Iterator[tuple[slice, Labels]]:
    for place, _, nearness in _nearness(rows, centres):
        yield place, nearness.argmax(axis=1).astype(np.int32)


def _nearness(rows: Rows, centres: Floats) -> Iterator[tuple[slice, Floats, Floats]]:
    """Tiles of rows, and how near they are to each centre: half of (the row's square minus the distance's square)."""
    # Distances by matrix product cancel badly far from the origin: the middle of the centres becomes it.
    middle = centres.mean(axis=0)
    moved = centres - middle
    halves = np.einsum("ij,ij->i", moved, moved) / 2
    for place, tile in tiles(rows, middle, width=len(centres)):
        yield place, tile, tile @ moved.T - halves
