"""Partitions on the workers of a real Dask cluster: the same results, and rows that stay on the workers."""

from __future__ import annotations

import pickle
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone

from sumwire import ConfigError, Lattice, dme
from sumwire.estimators import PCA, KMeans
from tests.estimators.data import CLUSTERS, blobs, name

# Most of what is tested here takes no more than two rounds.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ROWS = blobs()
PIECES = tuple(len(piece) for piece in np.array_split(ROWS, 8))
UNEQUAL = (1, 199, 2, 198, 400, 398, 1, 1)

MODELS = pytest.mark.parametrize(
    "model", [KMeans(CLUSTERS, max_iter=2, random_state=0), PCA(5, max_iter=2, random_state=0)], ids=name
)


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def result(model: Any) -> tuple[bytes, int]:
    found = model.cluster_centers_ if isinstance(model, KMeans) else model.components_
    return found.tobytes(), model.bits_sent_


@pytest.mark.parametrize(
    "model",
    [
        KMeans(CLUSTERS, max_iter=2, random_state=0, scheme=Lattice(8, 4)),
        PCA(5, max_iter=2, random_state=0, scheme=dme.Eden(4)),
    ],
    ids=name,
)
def test_the_same_bits_as_in_this_process(client: Client, model: Any) -> None:
    here = clone(model).fit(ROWS)
    sent = clone(model).set_params(client=client).fit(ROWS)
    there = clone(model).set_params(client=client).fit(da.from_array(ROWS, chunks=(PIECES, 16)))
    assert result(here) == result(sent) == result(there)


@MODELS
def test_only_what_is_counted_leaves_the_workers(client: Client, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[Any] = []
    gather = client.gather

    def spy(futures: Any, *args: Any, **kwargs: Any) -> Any:
        results = gather(futures, *args, **kwargs)
        gathered.extend(results)
        return results

    monkeypatch.setattr(client, "gather", spy)
    rows = da.from_array(ROWS, chunks=(UNEQUAL, 32))
    fitted = clone(model).set_params(client=client).fit(rows)
    assert {type(item) for item in gathered} == {bytes}
    assert fitted.bits_sent_ == 8 * sum(map(len, gathered)) < 8 * ROWS.nbytes / 2
    # Results are as lazy as their rows.
    results = [fitted.transform(rows)]
    results += [fitted.inverse_transform(results[0])] if isinstance(fitted, PCA) else []
    assert all(isinstance(found, da.Array) for found in results)
    assert np.allclose(results[0].compute(), fitted.transform(ROWS))


def test_labels_of_a_dask_array_are_lazy(client: Client) -> None:
    rows = da.from_array(ROWS.astype(np.float32), chunks=(UNEQUAL, 10))
    model = KMeans(CLUSTERS, max_iter=2, random_state=0).fit(rows)  # by the client of this thread
    assert isinstance(model.labels_, da.Array)
    assert (model.labels_.dtype, model.labels_.chunks) == (np.int32, (UNEQUAL,))
    assert np.array_equal(model.labels_.compute(), model.predict(ROWS.astype(np.float32)))
    assert model.score(rows) == pytest.approx(-model.inertia_)
    assert model.transform(rows).dtype == np.float32


@pytest.mark.parametrize("model", [KMeans(CLUSTERS, init=ROWS[:CLUSTERS], scheme=Lattice(8, 4)), PCA(4)], ids=name)
def test_partitions_of_one_row_and_of_one_cluster(client: Client, model: Any) -> None:
    alike = ROWS[np.argsort(np.arange(len(ROWS)) % CLUSTERS, kind="stable")]
    rows = da.from_array(alike, chunks=(UNEQUAL, 32))
    exact = clone(model).set_params(scheme=None, random_state=0).fit(alike)
    coded = clone(model).set_params(client=client, random_state=0, max_iter=10).fit(rows)
    if isinstance(model, KMeans):
        assert coded.inertia_ <= 1.001 * exact.inertia_
    else:
        assert coded.explained_variance_.sum() >= 0.994 * exact.explained_variance_.sum()


def test_chunks_of_no_rows_of_unknown_size_and_of_integers(client: Client) -> None:
    whole = np.round(4 * ROWS).astype(int)
    rows = da.from_array(whole, chunks=(300, 32))
    some = rows[da.from_array(np.arange(len(whole)) >= 350, chunks=300)]
    assert np.isnan(some.shape[0])
    model = PCA(3, scheme=None, max_iter=2, client=client, random_state=0).fit(some)
    assert model.n_samples_ == 850
    assert np.allclose(model.mean_, whole[350:].mean(axis=0))
    clusters = KMeans(CLUSTERS, max_iter=2, client=client, random_state=0).fit(some)
    assert np.array_equal(clusters.labels_.compute(), clusters.predict(whole[350:]))
    assert clusters.transform(some).compute().shape == (850, CLUSTERS)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@MODELS
def test_rows_that_are_not_finite(client: Client, model: Any, bad: float) -> None:
    rows = ROWS.copy()
    rows[777, 3] = bad
    with pytest.raises(ValueError, match="Input X contains NaN or infinity, in 1 partitions, the first is 5"):
        clone(model).set_params(client=client).fit(da.from_array(rows, chunks=(PIECES, 32)))


@pytest.mark.parametrize(("bad", "says"), [(np.nan, "Input X contains NaN"), (np.inf, "Input X contains infinity")])
@MODELS
def test_results_of_rows_that_are_not_finite(client: Client, model: Any, bad: float, says: str) -> None:
    """With scikit-learn's message, when results are computed."""
    fitted = clone(model).fit(ROWS)
    rows = da.from_array(np.where(np.arange(32) == 3, bad, ROWS), chunks=(300, 32))
    methods = [fitted.predict, fitted.transform] if isinstance(fitted, KMeans) else [fitted.transform]
    for method in methods:
        with pytest.raises(ValueError, match=says):
            method(rows).compute()
    last = fitted.score if isinstance(fitted, KMeans) else lambda x: fitted.inverse_transform(x[:, :5]).compute()
    with pytest.raises(ValueError, match=says):
        last(rows)


def test_other_widths_are_refused(client: Client) -> None:
    model = PCA(2).fit(ROWS)
    with pytest.raises(ValueError, match="X has 5 features, but PCA is expecting 32 features"):
        model.transform(da.ones((4, 5)))
    with pytest.raises(ConfigError, match="X has 5 columns, but PCA.transform returns 2"):
        model.inverse_transform(da.ones((4, 5)))


def test_inverse_transform_of_integers(client: Client) -> None:
    model = PCA(2).fit(ROWS)
    rows = model.inverse_transform(da.eye(2, chunks=1, dtype=int))
    assert np.allclose(rows.compute(), model.components_ + model.mean_)


def test_whitening_and_a_fraction_of_variance(client: Client) -> None:
    here, there = PCA(0.6, whiten=True, random_state=0), PCA(0.6, whiten=True, random_state=0, client=client)
    rows = da.from_array(ROWS, chunks=(PIECES, 16))
    assert result(here.fit(ROWS)) == result(there.fit(rows))
    white = there.transform(rows)
    assert isinstance(white, da.Array)
    assert np.allclose(white.compute(), here.transform(ROWS))
    assert np.allclose(there.inverse_transform(white).compute(), here.inverse_transform(here.transform(ROWS)))


def weighted(weights: Any, rows: Any, client: Client | None) -> KMeans:
    return KMeans(CLUSTERS, max_iter=2, random_state=0, client=client).fit(rows, sample_weight=weights)


@pytest.mark.parametrize("chunks", [PIECES, UNEQUAL])
def test_weights_of_rows(client: Client, chunks: Any) -> None:
    """Bit-identical wherever rows and weights are, and in whatever chunks weights are."""
    weights = np.random.default_rng(0).exponential(size=len(ROWS))
    rows = da.from_array(ROWS, chunks=(chunks, 16))
    there = [weighted(given, rows, client) for given in (weights, da.from_array(weights, chunks=100))]
    assert len({result(model) for model in there}) == 1
    if chunks == PIECES:
        here, sent = weighted(weights, ROWS, None), weighted(weights, ROWS, client)
        assert result(here) == result(sent) == result(there[0])
    scores = [there[0].score(rows, sample_weight=w) for w in (weights, da.from_array(weights, chunks=100))]
    assert scores == pytest.approx([there[0].score(ROWS, sample_weight=weights)] * 2)
    assert weighted(2, rows, client).inertia_ == pytest.approx(2 * weighted(None, rows, client).inertia_)


def test_weights_of_rows_whose_number_is_unknown(client: Client) -> None:
    weights, keep = np.linspace(0, 1, len(ROWS)), ROWS[:, 0] > 0
    lazy = da.from_array(keep, chunks=300)
    rows, lazy_weights = da.from_array(ROWS, chunks=(300, 32))[lazy], da.from_array(weights, chunks=300)[lazy]
    models = [weighted(given, rows, client) for given in (weights[keep], lazy_weights)]
    assert result(models[0]) == result(models[1])
    scores = [models[0].score(rows, sample_weight=given) for given in (weights[keep], lazy_weights)]
    assert scores == pytest.approx([models[0].score(ROWS[keep], sample_weight=weights[keep])] * 2)
    for wrong, says in (
        (weights, f"sample_weight has 1200 values, but X has {keep.sum()} rows"),
        (da.from_array(weights, chunks=300), "chunk 0 of sample_weight has .* values, but that of X has"),
        (da.from_array(weights, chunks=500), "sample_weight has 3 chunks and X has 4, of unknown sizes: give both"),
    ):
        with pytest.raises(ConfigError, match=says):
            weighted(wrong, rows, client)


@pytest.mark.parametrize(("bad", "says"), [(-1.0, "contains -1"), (np.nan, "contains NaN or infinity")])
def test_weights_that_are_invalid_on_the_cluster(client: Client, bad: float, says: str) -> None:
    rows, weights = da.from_array(ROWS, chunks=(300, 32)), da.from_array(np.r_[np.ones(1199), bad], chunks=300)
    with pytest.raises(ConfigError, match=says):
        weighted(weights, rows, client)
    with pytest.raises(ConfigError, match=says):
        weighted(None, rows, client).score(rows, sample_weight=weights)
    with pytest.raises(ConfigError, match="sample_weight has 1199 values, but X has 1200 rows"):
        weighted(weights[1:], rows, client)


def test_a_client_that_is_closed(client: Client) -> None:
    closed = Client(client.scheduler.address, set_as_default=False)
    closed.close()
    for rows in (ROWS, da.ones((4, 2))):
        with pytest.raises(ConfigError, match="is closed, not running: pass a new distributed.Client"):
            KMeans(2, client=closed).fit(rows)


def test_clones_share_the_client_and_saved_models_go_without(client: Client) -> None:
    model = KMeans(2, client=client, max_iter=1, random_state=0).fit(ROWS)
    assert clone(model).client is client
    saved = pickle.loads(pickle.dumps(model))
    assert saved.client is None
    assert np.array_equal(saved.predict(ROWS), model.labels_)


def test_the_example(client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[2] / "examples" / "kmeans_dask.py"
    options = ["--rows", "4000", "--chunks", "4", "--scheduler", client.scheduler.address]
    monkeypatch.setattr(sys, "argv", [script.name, *options])
    runpy.run_path(str(script), run_name="__main__")
    plain, coded, sizes = capsys.readouterr().out.splitlines()
    before, after = (float(line.split("inertia ")[1].split()[0]) for line in (plain, coded))
    assert after <= 1.05 * before
    assert sum(map(int, sizes.split(":")[1].split())) == 4000
