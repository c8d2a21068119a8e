"""Principal components by orthogonal iteration over partitions that send compressed products."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from sumwire.codec.options import switch
from sumwire.errors import ConfigError
from sumwire.estimators.base import Best, PartitionedTransformer, at_least
from sumwire.estimators.exchange import Exchange, SchemeOption, add_up
from sumwire.estimators.partitions import Array, Partitions, split
from sumwire.estimators.pca_rows import column_sums, project, squared_deviations
from sumwire.estimators.tiles import Floats, Rows, powers_of_two

PATIENCE = 3
"""Rounds in a row without progress after which the iteration ends."""
LEAST_STRENGTH = 0.01
"""Minimum strength of a direction, relative to the strongest, when units are chosen: in smaller units, the noise in
weak directions would use up the accuracy of the scheme. Measured on steep spectra: 0.1 loses more variance, and so does
0.001 with one bit."""
FIRST_COUNT = 8
"""Components of the first run if `n_components` is a fraction of variance; each further run doubles them. A run starts
from the components of the last one, so it converges quickly."""
_CHOICES = "a number of components (1, 2, ...), a fraction of the variance (more than 0, less than 1) or None for all"


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
    n_components : int or float, optional
        Number of components; None means all that rows and features allow. A fraction in 0..1 means the smallest number
        of components that explain more than this fraction of the variance. Runs with 8, 16, 32, ... components find it.
    scheme : MeanScheme, Codec, "auto" or None
        How products are sent: a scheme of `sumwire.dme`, a codec for at least as many workers as there are partitions,
        None for uncompressed float64, or "auto" for `Eden(4)`.
    partitions : int
        Number of partitions of a NumPy X; the partitions of a dask.array are its chunks.
    whiten : bool
        Divide the coordinates that `transform` returns by the standard deviation along their component, so that their
        variance is 1; `inverse_transform` multiplies them again.
    max_iter : int
        Maximum rounds; for a fraction of variance, of each run.
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
        n_components: float | None = None,
        *,
        scheme: SchemeOption = "auto",
        partitions: int = 8,
        whiten: bool = False,
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
        self.whiten = whiten
        self.max_iter = max_iter
        self.tol = tol
        self.centered = centered
        self.client = client
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Array, y: object = None) -> Self:
        """Find the principal components of the rows of X."""
        self._check_options()
        switch("whiten", self.whiten)
        x = self._check_rows(X, reset=True, least=2)
        random = check_random_state(self.random_state)
        with split(x, self.partitions, self.client) as partitions:
            rows = sum(partitions.sizes)
            count, fraction = self._wanted(rows, partitions.features)
            mean = _fetch_sum(partitions, column_sums) / rows
            scatter = float(_fetch_sum(partitions, squared_deviations, mean).item())
            exchange = Exchange(partitions, self.scheme, first_round=random.randint(1 << 31))
            best, self.n_iter_ = self._find(partitions, exchange, scatter, mean, count, fraction, random)
        self._warn_unless(best.converged)
        captured, basis = _strongest(*best.found, fraction, scatter)
        rows, components = sum(partitions.sizes), basis.T
        # Signs are arbitrary: make the largest entry of each component positive.
        largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
        self.components_ = components * np.where(largest < 0, -1, 1)
        self.mean_, self.n_components_, self.n_samples_ = mean, len(components), rows
        self.explained_variance_ = captured / (rows - 1)
        self.explained_variance_ratio_ = captured / (scatter or 1.0)
        self.singular_values_ = np.sqrt(captured)
        self.bits_sent_, self.bits_per_value_ = partitions.bits, exchange.bits_per_value
        return self

    def _wanted(self, rows: int, features: int) -> tuple[int, float | None]:
        """The components of the first run, and the fraction of variance to reach if that is what decides."""
        if rows < 2:
            raise ConfigError(f"n_samples={rows} is too few for a variance: pass at least 2 rows")
        most, given = min(rows, features), self.n_components
        if given is None:
            return most, None
        if not isinstance(given, numbers.Real) or isinstance(given, bool):
            raise ConfigError(f"n_components={given!r} is not {_CHOICES}")
        if not isinstance(given, numbers.Integral):
            if not 0 < given < 1:
                raise ConfigError(f"n_components={given!r} is not {_CHOICES}")
            return min(FIRST_COUNT, most), float(given)
        count = at_least("n_components", given, 1)
        if count > most:
            raise ConfigError(
                f"n_components={count} is not in 1..{most}, for n_samples={rows} and {features} features: ask for at "
                f"most {most} components"
            )
        return count, None

    def _find(
        self,
        partitions: Partitions,
        exchange: Exchange,
        scatter: float,
        mean: Floats,
        count: int,
        fraction: float | None,
        random: np.random.RandomState,
    ) -> tuple[Best[tuple[Floats, Floats]], int]:
        """The result of the last run, and the rounds of all.

        To reach a fraction of variance, runs with ever more directions start from those found so far.
        """
        features = partitions.features
        most, basis, rounds = min(sum(partitions.sizes), features), np.empty((features, 0)), 0
        while True:
            more = random.normal(size=(features, count - basis.shape[1]))
            best = self._run(partitions, exchange, scatter, mean, np.linalg.qr(np.hstack([basis, more]))[0])
            rounds += len(best.costs) - 1
            captured, basis = best.found
            if fraction is None or count == most or captured.sum() > fraction * scatter or not scatter:
                return best, rounds
            count = min(2 * count, most)

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
        return self._apply(x, _coordinates, self.mean_, self._axes(inverse=False), width=self.n_components_)

    def inverse_transform(self, X: Array) -> Array:
        """Rows from coordinates along the components; lazy if X is a dask.array."""
        check_is_fitted(self)
        x = self._check_coordinates(X, self.n_components_)
        return self._apply(x, _rows, self.mean_, self._axes(inverse=True), width=self.n_features_in_)

    def _axes(self, *, inverse: bool) -> Floats:
        """The components, scaled by the standard deviations along them if `whiten`; divided by them for `transform`.

        As in scikit-learn, `transform` takes deviations below float64's epsilon for it: there is no variance to scale.
        """
        axes: Floats = self.components_
        if not self.whiten:
            return axes
        deviations = np.sqrt(self.explained_variance_)[:, None]
        return axes * deviations if inverse else axes / np.maximum(deviations, np.finfo(np.float64).eps)

    @property
    def _n_features_out(self) -> int:
        count: int = self.n_components_
        return count


def _strongest(captured: Floats, basis: Floats, fraction: float | None, scatter: float) -> tuple[Floats, Floats]:
    """Directions in descending order of what they capture; only as many as capture more than `fraction` of it all."""
    order = np.argsort(-captured, kind="stable")
    if fraction is not None:
        short = np.cumsum(captured[order])[:-1] <= fraction * scatter
        order = order[: 1 + np.count_nonzero(short) if scatter else 1]
    return captured[order], basis[:, order]


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
