"""Principal components by orthogonal iteration over partitions that send compressed products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from sumwire.errors import ConfigError
from sumwire.estimators.base import Best, PartitionedTransformer, at_least
from sumwire.estimators.exchange import Exchange, SchemeOption, Share, add_up
from sumwire.estimators.partitions import Array, Partitions, split
from sumwire.estimators.tiles import Floats, Rows, powers_of_two, single_blas_thread, tiles

PATIENCE = 3
"""Rounds in a row without progress after which the iteration ends."""
LEAST_STRENGTH = 0.01
"""Minimum strength of a direction, relative to the strongest, when units are chosen: in smaller units, the noise in
weak directions would use up the accuracy of the scheme. Measured on steep spectra: 0.1 loses more variance, and so does
0.001 with one bit."""


class PCA(PartitionedTransformer):
    """PCA over partitions that send the product of their scatter matrix and the current components compressed.

    Law: each round estimates a step of orthogonal iteration with Rayleigh-Ritz, without bias if the scheme is unbiased;
    variances along the components are exact, and the components that capture most are kept. With scheme=None this is
    orthogonal iteration, which converges to the eigenvectors. Cost of a round: n_components x n_features values per
    partition at the bits of the scheme (4 by default), and n_components exact numbers; once, n_features + 1 exact
    numbers for mean and total variance. Results are bit-identical for the same random_state and partitions, with or
    without Dask.

    Parameters
    ----------
    n_components : int, optional
        Number of components; None means all that rows and features allow.
    scheme : MeanScheme, Codec, "auto" or None
        How products are sent: a scheme of `sumwire.dme`, a codec for at least as many workers as there are partitions,
        None for uncompressed float64, or "auto" for `Eden(4)`.
    partitions : int
        Number of partitions of a NumPy X; the partitions of a dask.array are its chunks.
    max_iter : int
        Maximum rounds.
    tol : float
        The iteration ends after three rounds that did not raise the captured variance by more than this fraction.
    centered : bool
        Send products minus what the last round predicts, which are smaller, so that schemes make smaller errors.
    client : distributed.Client, optional
        The client of the Dask cluster that holds the partitions.
    verbose : int
        1 prints a line per round.
    random_state : int, RandomState or None
        Seed of the first directions and of the noise of schemes.

    Attributes
    ----------
    components_ : ndarray
        The components as rows, by descending variance.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray
        As in scikit-learn.
    mean_ : ndarray
        The mean of the rows.
    n_components_, n_samples_, n_features_in_ : int
        Numbers of components, rows and features.
    n_iter_ : int
        Rounds.
    bits_sent_ : int
        Bits that partitions sent.
    bits_per_value_ : float
        Bits per value of the products.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 16)) * np.array([9, 5] + [1] * 14) + 3
    >>> model = PCA(n_components=2, random_state=0).fit(rows)
    >>> abs(model.components_).argmax(axis=1).tolist(), model.explained_variance_.round().tolist()
    ([0, 1], [81.0, 24.0])
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        scheme: SchemeOption = "auto",
        partitions: int = 8,
        max_iter: int = 100,
        tol: float = 1e-6,
        centered: bool = True,
        client: Any = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.scheme = scheme
        self.partitions = partitions
        self.max_iter = max_iter
        self.tol = tol
        self.centered = centered
        self.client = client
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Array, y: object = None) -> Self:
        """Find the principal components of the rows of X."""
        self._check_options()
        x = self._check_rows(X, reset=True, least=2)
        random = check_random_state(self.random_state)
        with split(x, self.partitions, self.client) as partitions:
            rows = sum(partitions.sizes)
            count = self._count(rows, partitions.features)
            mean = _fetch_sum(partitions, column_sums) / rows
            scatter = float(_fetch_sum(partitions, squared_deviations, mean).item())
            exchange = Exchange(partitions, self.scheme, first_round=random.randint(1 << 31))
            start, _ = np.linalg.qr(random.normal(size=(partitions.features, count)))
            best = self._run(partitions, exchange, scatter, mean, start)
        self._warn_unless(best.converged)
        captured, basis = best.found
        order = np.argsort(-captured, kind="stable")
        captured, components = captured[order], basis.T[order]
        # Signs are arbitrary: make the largest entry of each component positive.
        largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
        self.components_ = components * np.where(largest < 0, -1, 1)
        self.mean_, self.n_components_, self.n_samples_ = mean, count, rows
        self.explained_variance_ = captured / (rows - 1)
        self.explained_variance_ratio_ = captured / (scatter or 1.0)
        self.singular_values_ = np.sqrt(captured)
        self.n_iter_ = len(best.costs) - 1
        self.bits_sent_, self.bits_per_value_ = partitions.bits, exchange.bits_per_value
        return self

    def _count(self, rows: int, features: int) -> int:
        if rows < 2:
            raise ConfigError(f"n_samples={rows} is too few for a variance: at least 2 are needed")
        most = min(rows, features)
        if self.n_components is None:
            return most
        count = at_least("n_components", self.n_components, 1)
        if count > most:
            raise ConfigError(f"n_components={count} is not in 1..{most}, for n_samples={rows} and {features} features")
        return count

    def _run(
        self, partitions: Partitions, exchange: Exchange, scatter: float, mean: Floats, basis: Floats
    ) -> Best[tuple[Floats, Floats]]:
        """Run rounds from these directions; a candidate is the captured variances and the directions."""
        best: Best[tuple[Floats, Floats]] = Best(self.tol, PATIENCE)
        known, rows = np.zeros_like(basis), sum(partitions.sizes)
        for number in range(self.max_iter + 1):
            shares = partitions.run(project, partitions.rows, mean, basis, known)
            captured = exchange.exact(shares)
            if self.verbose and number:
                variance = captured.sum() / (rows - 1)
                print(f"round {number}: captured variance {variance:.6g}, {partitions.bits} bits sent")
            if not best.offer(_cost(captured), (captured, basis)) or number == self.max_iter:
                break
            product = known + exchange.total(shares, _units(captured, scatter, basis)) / rows
            basis, last = _next(product, basis), basis
            if self.centered:
                # A prediction of covariance times new directions, from the part of them that the last ones span.
                known = product @ (last.T @ basis)
        return best

    def transform(self, X: Array) -> Array:
        """Coordinates of rows along the components; lazy if X is a dask.array."""
        check_is_fitted(self)
        x = self._check_rows(X, reset=False)
        return self._apply(x, _coordinates, self.mean_, self.components_, width=self.n_components_)

    def inverse_transform(self, X: Array) -> Array:
        """Rows from coordinates along the components; lazy if X is a dask.array."""
        check_is_fitted(self)
        x = self._check_coordinates(X, self.n_components_)
        return self._apply(x, _rows, self.mean_, self.components_, width=self.n_features_in_)

    @property
    def _n_features_out(self) -> int:
        count: int = self.n_components_
        return count


def _next(product: Floats, basis: Floats) -> Floats:
    """The next directions, strongest first: Rayleigh-Ritz within the last ones, then a step of the iteration."""
    ritz = basis.T @ product
    _, turn = np.linalg.eigh(ritz + ritz.T)
    return np.linalg.qr(product @ turn[:, ::-1])[0]


def _units(captured: Floats, scatter: float, basis: Floats) -> Floats:
    """The units in which products along each direction are sent.

    An error e in the product along a direction that captures c rotates it by e / c, which loses e^2 / c. So tolerable
    errors grow with sqrt(c), and coordinates are at most sqrt(scatter c).
    """
    strong = np.maximum(captured, LEAST_STRENGTH * captured.max())
    return np.broadcast_to(powers_of_two(np.sqrt(scatter) * np.sqrt(strong)), basis.shape)


def _cost(captured: Floats) -> float:
    """A cost that is minimal for the principal components in order.

    The sum of variances is not enough: with as many components as features, it is the same for every basis.
    """
    return -float(np.cumsum(np.sort(captured)[::-1]).sum())


def _fetch_sum(partitions: Partitions, function: Callable[..., bytes], *arguments: Any) -> Floats:
    """The exact sum of what `function` returns on every partition."""
    return add_up(partitions.fetch(partitions.run(function, partitions.rows, *arguments)))


def _coordinates(rows: Rows, mean: Floats, components: Floats) -> Floats:
    return (rows - mean) @ components.T


def _rows(coordinates: Rows, mean: Floats, components: Floats) -> Floats:
    return coordinates @ components + mean


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
