"""What each partition computes for a PCA: sums over its own rows."""

from __future__ import annotations

import numpy as np

from sumwire.estimators.exchange import Share
from sumwire.estimators.tiles import Floats, Rows, single_blas_thread, tiles


@single_blas_thread
def project(rank: int, rows: Rows, mean: Floats, basis: Floats, known: Floats) -> Share:
    """Project the n rows Z, minus the mean, onto the directions V, which are columns.

    Exact: the sum of squares along each direction. The vector: Z^T Z V - n K, where K is the product per row that
    everyone already expects.
    """
    captured, product = np.zeros(basis.shape[1]), -len(rows) * known
    for _, tile in tiles(rows, mean, width=basis.shape[1]):
        along = tile @ basis
        captured += np.einsum("ij,ij->j", along, along)
        product += tile.T @ along
    return Share(captured, product)


def column_sums(rank: int, rows: Rows) -> bytes:
    """The sum of the rows."""
    total = np.zeros(rows.shape[1])
    for _, tile in tiles(rows, np.zeros(rows.shape[1]), width=1):
        total += tile.sum(axis=0)
    return total.tobytes()


@single_blas_thread
def squared_deviations(rank: int, rows: Rows, mean: Floats) -> bytes:
    """The sum of squared deviations from the mean."""
    return np.float64(sum(float(np.vdot(tile, tile)) for _, tile in tiles(rows, mean, width=1))).tobytes()
