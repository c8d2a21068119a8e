"""PCA: scikit-learn's results without compression, and close to them with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from sumwire import ConfigError, Lattice, RangeError, dme
from sumwire.estimators import PCA
from sumwire.estimators.pca import _cost
from tests.estimators.data import PARTITIONS, WITHIN, blobs, name

ROWS = blobs()
EXACT = sklearn.decomposition.PCA(4).fit(ROWS).explained_variance_.sum()


@pytest.mark.parametrize(("count", "dtype"), [(1, np.float64), (5, np.float32), (5, np.float64), (None, np.float64)])
def test_uncompressed_it_is_the_eigenvectors(count: int | None, dtype: Any) -> None:
    rows = load_digits().data.astype(dtype)
    theirs = sklearn.decomposition.PCA(count, svd_solver="full").fit(rows.astype(np.float64))
    ours = PCA(count, scheme=None, tol=1e-13, max_iter=500, random_state=0).fit(rows)
    scale = theirs.explained_variance_[0]
    assert np.allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-6, atol=1e-6 * scale)
    assert np.allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, atol=1e-6)
    assert np.allclose(ours.singular_values_[:5], theirs.singular_values_[:5], rtol=1e-6)
    assert np.allclose(ours.mean_, theirs.mean_)
    # Signs follow the same convention. Directions converge more slowly than variances, whose error is the square.
    assert np.allclose(ours.components_[:5], theirs.components_[:5], atol=1e-3)
    assert ours.transform(rows).dtype == dtype


@pytest.mark.parametrize(("scheme", "_more", "less"), WITHIN, ids=name)
def test_every_scheme_comes_close(scheme: Any, _more: float, less: float) -> None:
    partitions = getattr(scheme, "workers", PARTITIONS)
    model = PCA(4, scheme=scheme, partitions=partitions, random_state=7).fit(ROWS)
    assert EXACT * (1 - less) <= model.explained_variance_.sum() <= EXACT * (1 + 1e-9)
    assert np.allclose(model.components_ @ model.components_.T, np.eye(4), atol=1e-12)


@pytest.mark.parametrize("scheme", [dme.Eden(4), Lattice(8, 4)], ids=name)
def test_all_components_are_told_apart(scheme: Any) -> None:
    """Their total variance is the same in every basis."""
    theirs = sklearn.decomposition.PCA().fit(ROWS)
    ours = PCA(scheme=scheme, random_state=0).fit(ROWS)
    assert np.allclose(ours.explained_variance_, theirs.explained_variance_, atol=0.005 * EXACT)


def test_variances_are_those_along_the_components() -> None:
    model = PCA(4, random_state=0).fit(ROWS)
    assert np.allclose(model.transform(ROWS).var(axis=0, ddof=1), model.explained_variance_)
    assert model.explained_variance_ratio_.sum() == pytest.approx(
        model.explained_variance_.sum() / ROWS.var(0, ddof=1).sum()
    )
    assert (np.diff(model.explained_variance_) <= 0).all()
    assert (model.components_[range(4), abs(model.components_).argmax(axis=1)] > 0).all()


def test_inverse_transform_and_names() -> None:
    model = PCA(random_state=0).fit(ROWS)
    assert np.allclose(model.inverse_transform(model.transform(ROWS)), ROWS)
    assert model.get_feature_names_out()[:2].tolist() == ["pca0", "pca1"]
    assert (model.n_components_, model.n_samples_, model.n_features_in_) == (32, 1200, 32)


def test_inverse_transform_of_integers_and_of_other_widths() -> None:
    model = PCA(2, random_state=0).fit(ROWS)
    assert np.allclose(model.inverse_transform(np.eye(2, dtype=int)), model.components_ + model.mean_)
    with pytest.raises(ConfigError, match="X has 5 columns, but PCA.transform returns 2"):
        model.inverse_transform(np.ones((3, 5)))


def test_it_warns_if_rounds_end_too_early() -> None:
    with pytest.warns(ConvergenceWarning, match=r"PCA stopped after max_iter=2 rounds .*: raise max_iter"):
        assert PCA(4, max_iter=2, random_state=0).fit(ROWS).n_iter_ == 2


def test_centered_products_make_less_error() -> None:
    def loss(centered: bool) -> float:
        return 1 - PCA(4, centered=centered, random_state=0).fit(ROWS).explained_variance_.sum() / EXACT

    assert loss(True) < loss(False) / 10


@pytest.mark.parametrize(("rows", "partitions"), [(2, 1), (2, 2), (3, 9), (5, 3), (12, 11), (12, 30)])
def test_few_rows_in_any_partitions(rows: int, partitions: int) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, 4)) * [8, 4, 2, 1]
    ours = PCA(scheme=None, partitions=partitions, tol=1e-14, max_iter=300, random_state=0).fit(x)
    theirs = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    assert np.allclose(ours.singular_values_, theirs, atol=1e-3 * theirs[0])


@pytest.mark.parametrize("scheme", [dme.Eden(4), Lattice(8, 4)], ids=name)
def test_the_same_random_state_gives_the_same_bits(scheme: Any) -> None:
    a, b, other = (PCA(3, scheme=scheme, random_state=seed).fit(ROWS) for seed in (3, 3, 4))
    assert a.components_.tobytes() == b.components_.tobytes()
    assert a.bits_sent_ == b.bits_sent_
    assert a.components_.tobytes() != other.components_.tobytes()


def test_what_is_sent_and_counted() -> None:
    model = PCA(3, scheme=None, partitions=4, random_state=0).fit(ROWS)
    survey, moments = 4 * 2 * 64, 4 * (32 + 1) * 64
    captured = (model.n_iter_ + 1) * 4 * 3 * 64
    products = model.n_iter_ * 4 * 3 * 32 * 64
    assert model.bits_sent_ == survey + moments + captured + products
    assert model.bits_per_value_ == 64


def test_a_line_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    model = PCA(3, random_state=0, verbose=1).fit(ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[-1].startswith(f"round {model.n_iter_}: captured variance ")
    assert lines[-1].endswith(f", {model.bits_sent_} bits sent")


def test_weak_components_are_found_beside_strong_ones() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 100)) * np.arange(1, 101) ** -1.5
    theirs = sklearn.decomposition.PCA(20).fit(rows).explained_variance_
    ours = PCA(20, random_state=0).fit(rows).explained_variance_
    assert ours.sum() >= (1 - 0.0005) * theirs.sum()  # with one unit for all, 0.0013 would be lost


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
def test_values_beyond_float32(scale: float) -> None:
    model = PCA(4, random_state=0).fit(ROWS * scale)
    assert model.explained_variance_.sum() / scale / scale == pytest.approx(EXACT, rel=1e-4)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e154, 1e300])
def test_values_whose_squares_leave_float64(scale: float) -> None:
    with pytest.raises(RangeError, match=r"the largest magnitude of X is .*: divide X by"):
        PCA(2).fit(ROWS * scale)


def test_rows_that_are_all_the_same() -> None:
    model = PCA(random_state=0).fit(np.full((5, 3), 7.0))
    assert not model.explained_variance_.any()
    assert not model.explained_variance_ratio_.any()


def test_the_cost_is_least_for_components_in_order() -> None:
    assert _cost(np.array([5.0, 3.0, 1.0])) == _cost(np.array([1.0, 5.0, 3.0])) < _cost(np.array([4.0, 3.0, 2.0]))


DIGITS = load_digits().data


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 0.8, 0.9, 0.99])
def test_a_fraction_of_variance_needs_as_many_components_as_in_scikit_learn(fraction: float) -> None:
    theirs = sklearn.decomposition.PCA(fraction, svd_solver="full").fit(DIGITS)
    ours = PCA(fraction, scheme=None, tol=1e-9, max_iter=500, random_state=0).fit(DIGITS)
    assert ours.n_components_ == theirs.n_components_ == len(ours.components_)
    assert np.allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, atol=1e-6)
    assert np.allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-4)
    assert ours.transform(DIGITS).shape == theirs.transform(DIGITS).shape


@pytest.mark.parametrize("scheme", [dme.Eden(4), Lattice(8, 4)], ids=name)
@pytest.mark.parametrize("fraction", [0.5, 0.9])
def test_a_fraction_of_variance_is_exceeded_with_any_scheme(fraction: float, scheme: Any) -> None:
    """Variances are exact, so noise may cost a component, but never the fraction that was asked for."""
    model = PCA(fraction, scheme=scheme, random_state=0).fit(ROWS)
    least = sklearn.decomposition.PCA(fraction, svd_solver="full").fit(ROWS).n_components_
    assert least <= model.n_components_ <= least + 1
    sums = np.cumsum(model.explained_variance_ratio_)
    assert sums[-1] > fraction
    assert (sums[:-1] <= fraction).all()


def test_a_fraction_of_no_variance() -> None:
    assert PCA(0.5, random_state=0).fit(np.full((5, 3), 7.0)).n_components_ == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [3, 0.7])
def test_whitening_as_in_scikit_learn(count: float, dtype: Any) -> None:
    rows = blobs(dtype=dtype)
    theirs = sklearn.decomposition.PCA(count, whiten=True, svd_solver="full").fit(rows)
    ours = PCA(count, whiten=True, scheme=None, tol=1e-14, max_iter=1000, random_state=0).fit(rows)
    white = ours.transform(rows)
    assert white.dtype == dtype
    assert np.allclose(white, theirs.transform(rows), atol=1e-3)
    assert np.allclose(white.var(axis=0, ddof=1), 1, rtol=1e-4)
    assert np.allclose(ours.inverse_transform(white), theirs.inverse_transform(theirs.transform(rows)), atol=1e-3)
    plain = PCA(count, scheme=None, tol=1e-14, max_iter=1000, random_state=0).fit(rows)
    assert np.allclose(ours.inverse_transform(white), plain.inverse_transform(plain.transform(rows)), atol=1e-4)


def test_whitening_where_there_is_no_variance() -> None:
    model = PCA(whiten=True, random_state=0).fit(np.full((5, 3), 7.0))
    assert not model.transform(np.full((2, 3), 7.0)).any()
    assert np.array_equal(model.inverse_transform(np.ones((2, 3))), np.full((2, 3), 7.0))
