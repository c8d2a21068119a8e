"""Lloyd's algorithm over partitions that send compressed sums."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClusterMixin
from sklearn.cluster import kmeans_plusplus
from sklearn.utils import check_array, check_random_state
from sklearn.utils.random import sample_without_replacement
from sklearn.utils.validation import check_is_fitted

from sumwire.errors import ConfigError
from sumwire.estimators import kmeans_rows
from sumwire.estimators.base import Best, PartitionedTransformer, at_least
from sumwire.estimators.exchange import Exchange, SchemeOption
from sumwire.estimators.partitions import Array, Partitions, split
from sumwire.estimators.tiles import Floats, check_range, largest, powers_of_two
from sumwire.estimators.weights import RowWeights, check_weights, weighted_sum

PATIENCE = 2
"""Rounds in a row without progress after which a run ends."""
SAMPLE_PER_CLUSTER = 16
"""Rows per cluster that k-means++ sees. They cost as much as a round of 128 partitions at 4 bits; on digits and blobs,
more rows lowered the inertia by no more than the variation between seeds."""


class KMeans(ClusterMixin, PartitionedTransformer):  # type: ignore[misc]
    """k-means over partitions that send the sums of their clusters compressed.

    Law: each round estimates the next centers of Lloyd's algorithm, without bias if the scheme is unbiased; inertia is
    exact, and the centers with the least inertia are kept. With scheme=None this is Lloyd's algorithm. A cluster that
    loses all its rows keeps its center. Rows may have weights, which multiply their part in sums, counts and inertia.
    Cost of a round: n_clusters x n_features values per partition at the bits of the scheme (4 by default), and
    n_clusters + 1 exact numbers. Results are bit-identical for the same random_state and partitions, with or without
    Dask.

    Parameters
    ----------
    n_clusters : int
        Number of clusters.
    scheme : MeanScheme, Codec, "auto" or None
        How sums are sent: a scheme of `sumwire.dme`, a codec for at least as many workers as there are partitions,
        None for uncompressed float64, or "auto" for `Eden(4)`.
    partitions : int
        Number of partitions of a NumPy X; the partitions of a dask.array are its chunks.
    init : "k-means++", "random" or array
        First centers: k-means++ on a sample of rows that partitions send, random rows, or the centers themselves.
    n_init : int or "auto"
        Number of runs, of which the best is kept; an array of centers is run once. "auto" means 1 for "k-means++"
        and 10 for "random".
    max_iter : int
        Maximum rounds of a run.
    tol : float
        A run ends after two rounds that did not lower its inertia by more than this fraction.
    centered : bool
        Send sums of rows minus their center, which are smaller, so that schemes make smaller errors.
    client : distributed.Client, optional
        The client of the Dask cluster that holds the partitions.
    verbose : int
        1 prints a line per round.
    random_state : int, RandomState or None
        Seed of the first centers and of the noise of schemes.

    Attributes
    ----------
    cluster_centers_ : ndarray
        The centers.
    labels_ : ndarray or dask.array
        The nearest center of each row; lazy if X is a dask.array.
    inertia_ : float
        The sum of squared distances to the nearest center, multiplied by the weights of rows if they have any.
    history_ : list of float
        Inertia of the best run, at the start and after each round.
    n_iter_ : int
        Rounds of the best run.
    n_features_in_ : int
        Number of features.
    bits_sent_ : int
        Bits that partitions sent in all runs.
    bits_per_value_ : float
        Bits per value of the sums.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 64)) + 9 * np.eye(64)[np.arange(1000) % 4]
    >>> model = KMeans(n_clusters=4, random_state=0).fit(rows)
    >>> np.bincount(model.labels_).tolist(), bool(model.bits_per_value_ < 5)
    ([250, 250, 250, 250], True)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        scheme: SchemeOption = "auto",
        partitions: int = 8,
        init: str | ArrayLike = "k-means++",
        n_init: int | Literal["auto"] = 1,
        max_iter: int = 100,
        tol: float = 1e-4,
        centered: bool = True,
        client: Any = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.scheme = scheme
        self.partitions = partitions
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.centered = centered
        self.client = client
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Array, y: object = None, sample_weight: Any = None) -> Self:
        """Find the centers of the rows of X.

        `sample_weight` is one finite weight of at least 0 per row, as an array or a dask.array, or a number for all.
        """
        self._check_options()
        at_least("n_clusters", self.n_clusters, 1)
        runs = self._runs()
        x = self._check_rows(X, reset=True)
        given = check_weights(x, sample_weight)
        random = check_random_state(self.random_state)
        with split(x, self.partitions, self.client) as partitions:
            weights = RowWeights(partitions, given)
            exchange = Exchange(partitions, self.scheme, first_round=random.randint(1 << 31))
            starts = (self._start(partitions, weights, random) for _ in range(runs))
            best = min((self._run(partitions, weights, exchange, start) for start in starts), key=lambda run: run.cost)
        self._warn_unless(best.converged)
        self.cluster_centers_ = best.found
        self.history_, self.n_iter_ = [weights.unit * cost for cost in best.costs], len(best.costs) - 1
        self.inertia_ = min(self.history_)
        self.bits_sent_, self.bits_per_value_ = partitions.bits, exchange.bits_per_value
        self._n_features_out = self.n_clusters
        self.labels_ = self.predict(X)
        return self

    def _runs(self) -> int:
        """Number of runs; validates `init` and `n_init`."""
        if callable(self.init):
            raise ConfigError(f"init={self.init!r} is a function: call it, and pass the centers that it returns")
        if isinstance(self.init, str) and self.init not in ("k-means++", "random"):
            raise ConfigError(f'init={self.init!r} is not "k-means++", "random" or an array of centers')
        if isinstance(self.n_init, str) and self.n_init == "auto":
            return 10 if isinstance(self.init, str) and self.init == "random" else 1
        runs = at_least("n_init", self.n_init, 1)
        return runs if isinstance(self.init, str) else 1

    def fit_predict(self, X: Array, y: object = None, sample_weight: Any = None) -> Array:
        """`fit`, and the nearest center of each row."""
        return self.fit(X, sample_weight=sample_weight).labels_

    def fit_transform(self, X: Array, y: object = None, sample_weight: Any = None) -> Array:
        """`fit`, and the distance of each row to each center."""
        return self.fit(X, sample_weight=sample_weight).transform(X)

    def _run(self, partitions: Partitions, weights: RowWeights, exchange: Exchange, centers: Floats) -> Best[Floats]:
        """Run rounds from these centers; costs are in the unit of weights."""
        best: Best[Floats] = Best(self.tol, PATIENCE)
        for number in range(self.max_iter + 1):
            shares = partitions.run(kmeans_rows.assign, partitions.rows, weights.spread, centers, bool(self.centered))
            exact = exchange.exact(shares)
            counts, inertia = exact[:-1], float(exact[-1])
            if self.verbose and number:
                print(f"round {number}: inertia {weights.unit * inertia:.6g}, {partitions.bits} bits sent")
            if not best.offer(inertia, centers) or number == self.max_iter:
                break
            # An error e in the sum of n rows costs e^2 / n of inertia, so tolerable errors grow with sqrt(n). With one
            # unit for all clusters, noise on the scale of large clusters would displace the centers of small ones.
            # Below a weight of 1, which needs weights, errors must not exceed the sum: its center would fly away.
            units = powers_of_two(partitions.unit * np.minimum(np.sqrt(counts), counts))
            full = counts > 0
            means = exchange.total(shares, np.broadcast_to(units[:, None], centers.shape))[full] / counts[full, None]
            centers = centers.copy()
            centers[full] = centers[full] + means if self.centered else means
        return best

    def _start(self, partitions: Partitions, weights: RowWeights, random: np.random.RandomState) -> Floats:
        """The first centers."""
        k, rows = self.n_clusters, sum(partitions.sizes)
        if k > rows:
            raise ConfigError(f"n_samples={rows} should be >= n_clusters={k}: ask for fewer clusters")
        if not isinstance(self.init, str):
            centers = check_array(self.init, dtype=np.float64, copy=True, input_name="init")
            if centers.shape != (k, partitions.features):
                raise ConfigError(f"init has the shape {centers.shape}, not {(k, partitions.features)}")
            check_range("init", largest(centers))
            return np.asarray(centers)
        if k > weights.positive:
            raise ConfigError(
                f"n_clusters={k}, but only {weights.positive} rows have a weight above 0: ask for fewer clusters"
            )
        wanted = k if self.init == "random" else min(rows, k * SAMPLE_PER_CLUSTER)
        shares = None
        if weights.given:
            places, shares = weights.draw(wanted, random.randint(1 << 31))
        else:
            places = np.sort(sample_without_replacement(rows, wanted, random_state=random)).astype(np.int64)
        sample = partitions.take(places)
        if self.init == "k-means++":
            # Relative to their median: scikit-learn's distances suffer from cancellation far from the origin.
            middle = np.median(sample, axis=0)
            _, chosen = kmeans_plusplus(sample - middle, k, sample_weight=shares, random_state=random)
            sample = sample[chosen]
        return sample

    def predict(self, X: Array) -> Array:
        """The nearest center of each row; lazy if X is a dask.array."""
        check_is_fitted(self)
        x = self._check_rows(X, reset=False)
        return self._apply(x, kmeans_rows.nearest, self.cluster_centers_, width=None, dtype=np.int32)

    def transform(self, X: Array) -> Array:
        """The distance of each row to each center; lazy if X is a dask.array."""
        check_is_fitted(self)
        x = self._check_rows(X, reset=False)
        return self._apply(x, kmeans_rows.distances, self.cluster_centers_, width=self.n_clusters)

    def score(self, X: Array, y: object = None, sample_weight: Any = None) -> float:
        """The negative inertia of the rows, weighted as in `fit`."""
        check_is_fitted(self)
        x = self._check_rows(X, reset=False)
        weights = check_weights(x, sample_weight)
        squares = self._apply(x, kmeans_rows.squares, self.cluster_centers_, width=None, dtype=np.float64)
        return -weighted_sum(squares, weights)
