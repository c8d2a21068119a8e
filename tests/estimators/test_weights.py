"""Weights of rows in k-means: scikit-learn's results without compression, and close to them with it."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from sumwire import ConfigError, RangeError
from sumwire.estimators import KMeans
from sumwire.estimators.partitions import split
from sumwire.estimators.weights import RowWeights
from tests.estimators.data import CLUSTERS, PARTITIONS, WITHIN, blobs, name

ROWS = blobs()
START = ROWS[:CLUSTERS]
WEIGHTS = np.random.default_rng(1).exponential(size=len(ROWS)) * (np.arange(len(ROWS)) % 5 > 0)
EXACT = KMeans(CLUSTERS, init=START, scheme=None).fit(ROWS, sample_weight=WEIGHTS).inertia_


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("scale", [1e-6, 1, 1e9])
def test_uncompressed_it_is_scikit_learns_algorithm(scale: float, centered: bool, dtype: Any) -> None:
    rows = load_digits().data.astype(dtype)
    weights = scale * np.random.default_rng(0).integers(0, 4, len(rows))
    theirs = sklearn.cluster.KMeans(10, init=rows[:10], n_init=1, tol=0).fit(rows, sample_weight=weights)
    ours = KMeans(10, init=rows[:10], scheme=None, tol=0, centered=centered).fit(rows, sample_weight=weights)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-5)
    assert np.array_equal(ours.labels_, theirs.labels_)
    assert np.allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-4)
    assert ours.score(rows, sample_weight=weights) == pytest.approx(-ours.inertia_)
    assert ours.score(rows, sample_weight=weights) == pytest.approx(theirs.score(rows, sample_weight=weights), rel=1e-5)
    labels = KMeans(10, init=rows[:10], scheme=None, tol=0).fit_predict(rows, sample_weight=weights)
    assert np.array_equal(labels, theirs.labels_)


@pytest.mark.parametrize(("scheme", "more", "_less"), WITHIN, ids=name)
def test_every_scheme_comes_close(scheme: Any, more: float, _less: float) -> None:
    partitions = getattr(scheme, "workers", PARTITIONS)
    model = KMeans(CLUSTERS, init=START, scheme=scheme, partitions=partitions, random_state=7)
    # Sums of weighted rows vary more, and errors are proportional to them.
    varies = np.square(WEIGHTS).mean() / np.square(WEIGHTS.mean())
    assert model.fit(ROWS, sample_weight=WEIGHTS).inertia_ <= EXACT * (1 + more * varies)
    assert model.inertia_ == min(model.history_) == pytest.approx(-model.score(ROWS, sample_weight=WEIGHTS))


def test_whole_weights_are_repeated_rows() -> None:
    times = np.arange(len(ROWS)) % 4
    options: dict[str, Any] = {"init": START, "scheme": None, "tol": 0}
    weighted = KMeans(CLUSTERS, **options).fit(ROWS, sample_weight=times)
    repeated = KMeans(CLUSTERS, **options).fit(np.repeat(ROWS, times, axis=0))
    assert np.allclose(weighted.cluster_centers_, repeated.cluster_centers_)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_)


@pytest.mark.parametrize("weights", [1, 3.5, np.full(len(ROWS), 3.5)], ids=["1", "3.5", "array"])
def test_the_same_weight_for_all_changes_only_the_inertia(weights: Any) -> None:
    plain = KMeans(CLUSTERS, random_state=0).fit(ROWS)
    model = KMeans(CLUSTERS, random_state=0).fit(ROWS, sample_weight=weights)
    assert np.array_equal(model.cluster_centers_, plain.cluster_centers_)
    assert model.inertia_ == plain.inertia_ * np.max(weights)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_rows_without_weight_do_not_matter(init: str) -> None:
    """Not even as first centers, although they are far away."""
    far = np.arange(len(ROWS)) % 3 == 0
    rows = np.where(far[:, None], 1e6 + ROWS, ROWS)
    model = KMeans(CLUSTERS, init=init, n_init=3, random_state=0).fit(rows, sample_weight=~far)
    assert (model.cluster_centers_ < 1e3).all()
    assert len(set(model.labels_[~far])) == CLUSTERS


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_a_start_of_ours_is_as_good_as_scikit_learns(init: Any) -> None:
    theirs, ours = (
        kind(CLUSTERS, init=init, n_init=5, random_state=0, **more).fit(ROWS, sample_weight=WEIGHTS).inertia_
        for kind, more in ((sklearn.cluster.KMeans, {}), (KMeans, {"scheme": None}))
    )
    assert ours <= 1.01 * theirs


@settings(max_examples=20, deadline=None)
@given(wanted=st.integers(1, 12), seed=st.integers(0, 99), count=st.integers(1, 4))
def test_draws_are_distinct_rows_with_weight(wanted: int, seed: int, count: int) -> None:
    weights = np.array([0, 1, 2, 0, 5, 0.1, 3, 1e-9, 0, 4.0])
    with split(np.ones((10, 2)), count, None) as partitions:
        of_rows = RowWeights(partitions, weights)
        places, shares = of_rows.draw(wanted, seed)
        assert (np.diff(places) > 0).all()
        assert (weights[places] > 0).all()
        assert len(places) == min(wanted, 7)
        if wanted >= 7:  # all are drawn: they represent nothing but themselves
            assert np.array_equal(shares * of_rows.unit, weights[places])


def test_draws_represent_all_rows() -> None:
    """The mean of the estimated total weight is the total weight, and chances are proportional to weights."""
    weights = np.array([0.5, 1, 2, 4, 8, 16, 0.5, 1.0])
    with split(np.ones((8, 2)), 3, None) as partitions:
        of_rows = RowWeights(partitions, weights)
        totals = [of_rows.draw(3, seed)[1].sum() * of_rows.unit for seed in range(3000)]
        first = [of_rows.draw(1, seed)[0].item() for seed in range(3000)]
    assert np.mean(totals) == pytest.approx(weights.sum(), rel=0.03)
    assert np.bincount(first, minlength=8) / 3000 == pytest.approx(weights / weights.sum(), abs=0.03)


def test_very_different_weights() -> None:
    """The centers of clusters that weigh next to nothing stay where rows are."""
    weights = 10.0 ** -(3 * np.arange(len(ROWS)) % CLUSTERS * 20)
    for centered in (True, False):
        model = KMeans(CLUSTERS, init=START, centered=centered, random_state=0).fit(ROWS, sample_weight=weights)
        assert np.isfinite(model.cluster_centers_).all()
        assert (abs(model.cluster_centers_) < 10 * abs(ROWS).max()).all()


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (np.ones(3), "sample_weight has 3 values, but X has 1200 rows: pass one weight per row"),
        (np.ones((1200, 1)), "sample_weight has 2 dimensions: pass a number, or one weight per row of X"),
        (-WEIGHTS, "sample_weight contains -.*: weights must be finite numbers of at least 0"),
        (WEIGHTS * np.nan, "sample_weight contains NaN or infinity: weights must be finite"),
        (WEIGHTS + np.inf, "sample_weight contains NaN or infinity"),
        (0, "Sample weights must contain at least one non-zero number"),
        (np.arange(1200) < 3, "n_clusters=6, but only 3 rows have a weight above 0: ask for fewer clusters"),
        ("balanced", "sample_weight has 0 dimensions"),
    ],
)
def test_what_is_refused(weights: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        KMeans(CLUSTERS).fit(ROWS, sample_weight=weights)
    if "clusters" not in says:
        with pytest.raises(ConfigError, match=says):
            KMeans(CLUSTERS, init=START).fit(ROWS).score(ROWS, sample_weight=weights)


def test_weights_that_no_sum_can_hold() -> None:
    with pytest.raises(RangeError, match="the largest magnitude of sample_weight is 1e\\+200"):
        KMeans(CLUSTERS).fit(ROWS, sample_weight=np.full(len(ROWS), 1e200))


def test_what_is_sent_and_counted() -> None:
    plain = KMeans(CLUSTERS, init=START, scheme=None, partitions=4, max_iter=9).fit(ROWS)
    model = KMeans(CLUSTERS, init=START, scheme=None, partitions=4, max_iter=9).fit(ROWS, sample_weight=WEIGHTS)
    rounds = model.n_iter_ - plain.n_iter_
    each = 4 * 64 * (CLUSTERS + 1 + CLUSTERS * 32)
    assert model.bits_sent_ == plain.bits_sent_ + rounds * each + 4 * 5 * 64


def test_a_dask_array_of_weights_for_rows_in_this_process() -> None:
    here = KMeans(CLUSTERS, random_state=0).fit(ROWS, sample_weight=WEIGHTS)
    lazy = KMeans(CLUSTERS, random_state=0).fit(ROWS, sample_weight=da.from_array(WEIGHTS, chunks=100))
    assert np.array_equal(here.cluster_centers_, lazy.cluster_centers_)
