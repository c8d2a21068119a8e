"""scikit-learn's own checks, and invalid arguments."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from sumwire import ConfigError, Lattice, dme
from sumwire.estimators import PCA, KMeans
from tests.estimators.data import blobs

BOTH = pytest.mark.parametrize("estimator", [KMeans, PCA])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # checks allow few rounds
@BOTH
def test_scikit_learn_finds_nothing_wrong(estimator: Any) -> None:
    # As for scikit-learn's own KMeans: the first centers are drawn from other rows if rows are repeated or removed.
    differs = "check_sample_weight_equivalence_on_dense_data"
    expected = {differs: "draws other first centers"} if estimator is KMeans else {}
    done = check_estimator(estimator(partitions=3), on_skip=None, expected_failed_checks=expected)
    skipped = {check["check_name"] for check in done if check["status"] != "passed"} - expected.keys()
    # One needs SCIPY_ARRAY_API=1 in the environment, the other one pandas.
    assert skipped <= {"check_array_api_input", "check_sample_weights_pandas_series"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"partitions": 0}, "partitions=0 is less than 1"),
        ({"partitions": 2.5}, "partitions=2.5 is not a whole number"),
        ({"max_iter": 0}, "max_iter=0 is less than 1"),
        ({"tol": -1.0}, "tol=-1.0 is not a number of at least 0"),
        ({"tol": "small"}, "tol='small' is not a number"),
        ({"scheme": "best"}, "scheme='best' is not a scheme of sumwire.dme"),
        ({"scheme": dme.Eden}, "is not a scheme of sumwire.dme"),
        ({"scheme": Lattice(4), "partitions": 5}, "built for 4 workers, but there are 5 partitions: build it with"),
        ({"client": "localhost:8786"}, "client='localhost:8786' is not a distributed.Client"),
    ],
)
@BOTH
def test_wrong_options(estimator: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        estimator(2, **options).fit(blobs(20))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (KMeans(0), "n_clusters=0 is less than 1"),
        (KMeans(21), "n_samples=20 should be >= n_clusters=21"),
        (KMeans(n_init=0), "n_init=0 is less than 1"),
        (KMeans(n_init="many"), "n_init='many' is not a whole number"),
        (KMeans(init="kmeans"), "init='kmeans' is not"),
        (KMeans(init=max), "init=.*max.* is a function: call it, and pass the centers that it returns"),
        (KMeans(3, init=np.zeros((2, 32))), r"init has the shape \(2, 32\), not \(3, 32\)"),
        (PCA(0), "n_components=0 is less than 1"),
        (
            PCA(1.0),
            r"n_components=1.0 is not a number of components \(1, 2, ...\), a fraction of the variance \(more than",
        ),
        (PCA(0.0), "n_components=0.0 is not a number of components"),
        (PCA(float("nan")), "n_components=nan is not a number of components"),
        (PCA("mle"), "n_components='mle' is not a number of components .* or None for all"),
        (PCA(True), "n_components=True is not a number of components"),
        (PCA(2, whiten="yes"), "whiten='yes' is not True or False"),
        (PCA(21), "n_components=21 is not in 1..20, for n_samples=20 and 32 features"),
    ],
)
def test_wrong_options_of_one(model: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        model.fit(blobs(20))


@BOTH
def test_a_dask_array_needs_a_client(estimator: Any) -> None:
    with pytest.raises(ConfigError, match=r"X is a dask.array, and there is no Dask client: pass client="):
        estimator(2).fit(da.ones((4, 2)))
    with pytest.raises(ConfigError, match="X has 3 dimensions, but 2 are needed"):
        estimator(2).fit(da.ones((4, 2, 2)))


FRAME = type("DataFrame", (), {"to_dask_array": None})()
"""Dask has DataFrames only if pandas is installed."""
UNKNOWN = da.ones((4, 3), chunks=2)[:, da.from_array(np.array([True, True, False]), chunks=2)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (UNKNOWN, r"X has an unknown number of columns: call X.compute_chunk_sizes\(\) first"),
        (da.ma.masked_greater(da.ones((4, 2)), 2), r"chunks of X are MaskedArrays, .* dask.array.ma.filled\(X, 0\)"),
        (FRAME, r"X is a Dask DataFrame: pass X.to_dask_array\(lengths=True\)"),
    ],
)
@BOTH
def test_what_of_dask_is_refused(estimator: Any, rows: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        estimator(2).fit(rows)
    fitted = estimator(2).fit(blobs(20)[:, :2])
    with pytest.raises(ConfigError, match=says):
        fitted.transform(rows)


def test_a_codec_for_more_workers_than_there_are_partitions_will_do() -> None:
    assert KMeans(2, scheme=Lattice(9), partitions=4).fit(blobs(20)).n_iter_ >= 1


@BOTH
def test_fitted_models_can_be_cloned_and_saved(estimator: Any) -> None:
    rows = blobs(60)
    model = estimator(3, scheme=Lattice(8, 3), random_state=1).fit(rows)
    again = clone(model).fit(rows)
    saved = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.transform(rows), again.transform(rows))
    assert np.array_equal(model.transform(rows), saved.transform(rows))


def test_sumwire_needs_no_scikit_learn_and_estimators_need_no_dask() -> None:
    code = (
        "import sys, sumwire, sumwire.dme; assert 'sklearn' not in sys.modules;"
        "import sumwire.estimators; assert 'dask' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
