"""k-means: scikit-learn's results without compression, and close to them with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from sumwire import RangeError, dme
from sumwire.estimators import KMeans
from sumwire.estimators.kmeans_rows import distances, nearest, squares
from tests.estimators.data import CLUSTERS, PARTITIONS, WITHIN, blobs, name

ROWS = blobs()
START = ROWS[:CLUSTERS]
EXACT = KMeans(CLUSTERS, init=START, scheme=None).fit(ROWS).inertia_


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("centered", [True, False])
def test_uncompressed_it_is_lloyds_algorithm(centered: bool, dtype: Any) -> None:
    rows = load_digits().data.astype(dtype)
    theirs = sklearn.cluster.KMeans(10, init=rows[:10], n_init=1, tol=0).fit(rows)
    ours = KMeans(10, init=rows[:10], scheme=None, tol=0, centered=centered).fit(rows)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-6)
    assert np.array_equal(ours.labels_, theirs.labels_)
    assert np.allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-4)
    assert ours.transform(rows).dtype == dtype
    assert np.allclose(ours.transform(rows), theirs.transform(rows), atol=1e-2)
    assert ours.score(rows) == pytest.approx(-ours.inertia_)


@pytest.mark.parametrize(("scheme", "more", "_less"), WITHIN, ids=name)
def test_every_scheme_comes_close(scheme: Any, more: float, _less: float) -> None:
    partitions = getattr(scheme, "workers", PARTITIONS)
    model = KMeans(CLUSTERS, init=START, scheme=scheme, partitions=partitions, random_state=7).fit(ROWS)
    assert model.inertia_ <= EXACT * (1 + more)


def test_centered_sums_make_less_error() -> None:
    def excess(centered: bool) -> float:
        return KMeans(CLUSTERS, init=START, centered=centered, random_state=0).fit(ROWS).inertia_ / EXACT - 1

    assert excess(True) < excess(False) / 10


@pytest.mark.parametrize("partitions", [2, 7, 19, 20, 50])
def test_partitions_make_no_difference_to_exact_sums(partitions: int) -> None:
    x = blobs(20)
    whole = KMeans(3, scheme=None, partitions=1, random_state=0).fit(x)
    parts = KMeans(3, scheme=None, partitions=partitions, random_state=0).fit(x)
    assert parts.inertia_ == pytest.approx(whole.inertia_)
    assert np.array_equal(parts.labels_, whole.labels_)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_the_same_random_state_gives_the_same_bits(init: str) -> None:
    a, b, other = (KMeans(CLUSTERS, init=init, random_state=seed).fit(ROWS) for seed in (3, 3, 4))
    assert a.cluster_centers_.tobytes() == b.cluster_centers_.tobytes()
    assert (a.bits_sent_, a.history_) == (b.bits_sent_, b.history_)
    assert a.cluster_centers_.tobytes() != other.cluster_centers_.tobytes()


def test_more_runs_are_no_worse() -> None:
    one, four = (KMeans(CLUSTERS, init="random", n_init=n, random_state=0).fit(ROWS) for n in (1, 4))
    assert four.inertia_ <= one.inertia_
    assert four.bits_sent_ > 3 * one.bits_sent_


def test_what_is_sent_and_counted() -> None:
    model = KMeans(CLUSTERS, scheme=None, partitions=4, random_state=0).fit(ROWS)
    survey, sample = 4 * 2 * 64, 16 * CLUSTERS * 32 * 32 + 3 * 32 * 64
    tallies = (model.n_iter_ + 1) * 4 * (CLUSTERS + 1) * 64
    sums = model.n_iter_ * 4 * CLUSTERS * 32 * 64
    assert model.bits_sent_ == survey + sample + tallies + sums
    assert model.bits_per_value_ == 64
    coded = KMeans(CLUSTERS, scheme=dme.Eden(4), partitions=4, random_state=0).fit(ROWS)
    assert 4 < coded.bits_per_value_ < 5.1


def test_history_and_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    model = KMeans(CLUSTERS, init=START, random_state=0, verbose=1).fit(ROWS)
    assert model.inertia_ == min(model.history_) == pytest.approx(-model.score(ROWS))
    assert len(model.history_) == model.n_iter_ + 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[-1] == f"round {model.n_iter_}: inertia {model.history_[-1]:.6g}, {model.bits_sent_} bits sent"
    with pytest.warns(ConvergenceWarning, match=r"KMeans stopped after max_iter=1 rounds .*: raise max_iter"):
        assert KMeans(CLUSTERS, init=START, max_iter=1).fit(ROWS).n_iter_ == 1


def test_runs_that_are_left_to_us() -> None:
    """As many runs as in scikit-learn."""
    for init, runs in [("k-means++", 1), ("random", 10), (ROWS[:3], 1)]:
        auto, given = (
            KMeans(3, init=init, n_init=n, partitions=2, random_state=0).fit(ROWS[:20]) for n in ("auto", runs)
        )
        assert (auto.bits_sent_, auto.inertia_) == (given.bits_sent_, given.inertia_)


def test_an_empty_cluster_keeps_its_center() -> None:
    far = np.full((1, 32), 1e3)
    model = KMeans(CLUSTERS + 1, init=np.vstack([START, far]), random_state=0).fit(ROWS)
    assert np.array_equal(model.cluster_centers_[-1:], far)


def test_small_clusters_stay_with_their_rows() -> None:
    """Errors in the sums of large clusters, of 300 rows on average, must not move those of 2 rows."""
    few = blobs(12)[:, ::-1]
    rows, start = np.vstack([ROWS, few]), np.vstack([START, few[:CLUSTERS]])
    exact, coded = (KMeans(12, init=start, scheme=scheme, random_state=0).fit(rows) for scheme in (None, dme.Eden(3)))
    assert np.array_equal(exact.labels_, coded.labels_)
    assert coded.inertia_ <= 1.001 * exact.inertia_


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
def test_values_beyond_float32(scale: float) -> None:
    model = KMeans(CLUSTERS, init=START * scale, random_state=0).fit(ROWS * scale)
    assert model.inertia_ / scale / scale == pytest.approx(EXACT, rel=0.001)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e154, 1e300])
def test_values_whose_squares_leave_float64(scale: float) -> None:
    with pytest.raises(RangeError, match=r"the largest magnitude of X is .*: divide X by"):
        KMeans(CLUSTERS).fit(ROWS * scale)
    if scale > 1:
        with pytest.raises(RangeError, match="the largest magnitude of init is"):
            KMeans(CLUSTERS, init=START * scale).fit(ROWS)
        with pytest.raises(RangeError, match="the largest magnitude of X is"):
            KMeans(CLUSTERS, init=START).fit(ROWS).predict(ROWS * scale)


def test_timestamps() -> None:
    """Adjacent float32 numbers are 128 s apart there."""
    rows = 1.7e9 + np.repeat([0, 60, 120, 180], 100)[:, None] + 3 * np.random.default_rng(0).normal(size=(400, 1))
    theirs = sklearn.cluster.KMeans(4, n_init=3, random_state=0).fit(rows)
    for init in ("k-means++", "random"):
        assert KMeans(4, init=init, n_init=3, random_state=0).fit(rows).inertia_ <= 1.01 * theirs.inertia_


@pytest.mark.parametrize("outlier", [1e8, 1e10, 1e12])
def test_an_outlier_does_not_hide_the_others(outlier: float) -> None:
    rows = np.vstack([ROWS, np.full((1, 32), outlier)])
    model = KMeans(CLUSTERS + 1, init=np.vstack([START, rows[-1:]]), scheme=None).fit(rows)
    assert model.inertia_ == pytest.approx(EXACT)
    apart = np.linalg.norm(rows[:, None] - model.cluster_centers_, axis=2)
    assert np.array_equal(model.labels_, apart.argmin(axis=1))
    assert np.allclose(model.transform(rows), apart, rtol=1e-9, atol=0)
    assert model.score(rows) == pytest.approx(-EXACT)


@given(k=st.integers(1, 6), features=st.integers(1, 40), span=st.integers(0, 12), seed=st.integers(0, 999))
def test_nearest_centers_are_those_of_direct_distances(k: int, features: int, span: int, seed: int) -> None:
    """Rows and centers anywhere, some of them the same, at distances that differ by many orders of magnitude."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(40, features)) * 10.0 ** rng.integers(0, span + 1, size=(40, 1))
    points += 10.0 ** rng.integers(0, span + 1)
    rows, centers = points, points[rng.integers(40, size=k)]
    apart = np.square(rows[:, None] - centers).sum(axis=2)
    assert np.allclose(squares(rows, centers), apart.min(axis=1), rtol=1e-12, atol=0)
    assert np.array_equal(nearest(rows, centers), apart.argmin(axis=1))
    assert np.allclose(distances(rows, centers), np.sqrt(apart), rtol=1e-9, atol=0)


def test_rows_far_from_the_origin() -> None:
    model = KMeans(CLUSTERS, init=START + 1e8, random_state=0).fit(ROWS + 1e8)
    assert model.inertia_ == pytest.approx(EXACT, rel=0.001)
    assert np.array_equal(model.labels_[: 2 * CLUSTERS], [*range(CLUSTERS)] * 2)
