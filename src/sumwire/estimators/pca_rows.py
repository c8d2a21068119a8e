"""What PCA does with the rows of one partition."""

from __future__ import annotations

import numpy as np

from sumwire.estimators.exchange import Share
from sumwire.estimators.tiles import Floats, Rows, steady, tiles


@steady
def project(rank: int, rows: Rows, mean: Floats, basis: Floats, known: Floats) -> Share:
    """The n rows Z, about the mean, along the directions V, which are columns.

    Exact: the sum of squares along each direction. The vector: Z^T Z V - n K, where K is what all know already of
    a row on average.
    """
    captured, product = np.zeros(basis.shape[1]), -len(rows) * known
    for _, tile in tiles(rows, mean, width=basis.shape[1]):
        along = tile @ basis
        captured += np.einsum("ij,ij->j", along, along)
        product += tile.T @ along
    return Share(captured, product)


def column_sums(rank: int, rows: Rows) -> bytes:
    total = np.zeros(rows.shape[1])
    for _, tile in tiles(rows, np.zeros(rows.shape[1]), width=1):
        total += tile.sum(axis=0)
    return total.tobytes()


@steady
def scatter(rank: int, rows: Rows, mean: Floats) -> bytes:
    """The sum of all squares about the mean."""
    return np.float64(sum(float(np.vdot(tile, tile)) for _, tile in tiles(rows, mean, width=1))).tobytes()
