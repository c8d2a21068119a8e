"""`sumwire lab pca`: orthogonal iteration over clients that send products, for every scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from sumwire.estimators import PCA
from sumwire.estimators.exchange import Scheme
from sumwire.lab.display import check_path, progress_bar
from sumwire.lab.dme.schemes import Entry, Panel
from sumwire.lab.dme.study import (
    MAX_BITS,
    MAX_LOSS,
    Fit,
    Study,
    family_lines,
    fit_panels,
    limited_rounds,
    prepare,
    present,
    record_fits,
)
from sumwire.lab.images import Rows

_TILE = 4096
"""Number of rows to multiply at a time."""

_COLUMNS: dict[str, Callable[[Fit], str]] = {
    "bits": lambda fit: f"{fit.bits:.2f}",
    "lost": lambda fit: f"{fit.loss:.2%}",
    "distance": lambda fit: f"{fit.distance:.4f}",
}
_CAPTION = (
    "lost: share of the variance that the exact components explain; distance: of the first component from the exact "
    "one; both in the worst repetition. bits: sent by a client, per value of the products, including headers and "
    "terms; uncompressed 64. Drive is Eden(1). Lattice: for n clients, payloads can be added without decoding."
)


class Exact(NamedTuple):
    """The first eigenvectors of the covariance, as rows, and the share of the variance that they explain."""

    components: NDArray[np.float64]
    explained: float

    def loss(self, model: PCA) -> float:
        return 1 - float(model.explained_variance_ratio_.sum()) / self.explained

    def distance(self, model: PCA) -> float:
        """Distance of the first component from the exact one, whatever their signs."""
        mine, exact = model.components_[0], self.components[0]
        return float(min(np.linalg.norm(mine - exact), np.linalg.norm(mine + exact)))


def run(*, components: int, figure: Path, results: Path | None = None, **options: Any) -> None:
    """Measure, print the tables, draw the figure and append to the results; other options as for `prepare`."""
    check_path(figure)
    console, study = Console(highlight=False), prepare(**options)
    with progress_bar(console, f"components of {study.name}", 1 + study.fits) as tick:
        exact, plain, fits = measure(study, components, tick)
    record_fits(study, fits, "variance_lost_percent", results)
    present(
        study,
        fits,
        panels(study, fits),
        title=f"PCA of {study.name}, {components} component{'s' * (components > 1)}",
        columns=_COLUMNS,
        caption=_CAPTION,
        reference=f"exact: {exact.explained:.2%} of the variance; uncompressed, after {plain.n_iter_} rounds: "
        f"{exact.loss(plain):.2%} lost, distance {exact.distance(plain):.4f}",
        goal="exact PCA's explained variance",
        figure=figure,
        console=console,
    )


@limited_rounds()
def measure(study: Study, components: int = 1, tick: Callable[[], None] = lambda: None) -> tuple[Exact, PCA, list[Fit]]:
    """The exact result, an uncompressed model, and the fits of all schemes; call `tick` after each."""
    exact = eigenvectors(study.rows, components)

    def fit(scheme: Scheme, clients: int, centered: bool, repeat: int = 0) -> PCA:
        return PCA(
            components,
            scheme=scheme,
            partitions=clients,
            max_iter=study.rounds,
            centered=centered,
            random_state=(study.seed + repeat) % 2**32,
        ).fit(study.rows)

    def one(entry: Entry, clients: int, centered: bool) -> Fit:
        models = [fit(entry.scheme, clients, centered, repeat) for repeat in range(study.repeats)]
        return Fit(
            entry,
            clients,
            centered,
            bits=fmean(model.bits_per_value_ for model in models),
            rounds=fmean(model.n_iter_ for model in models),
            loss=max(map(exact.loss, models)),
            distance=max(map(exact.distance, models)),
        )

    plain = fit(None, max(study.clients), True)
    tick()
    return exact, plain, study.fit(one, tick)


def eigenvectors(rows: Rows, count: int) -> Exact:
    """Eigenvectors of the covariance matrix, which is computed from a few rows at a time."""
    mean = rows.mean(axis=0, dtype=np.float64)
    scatter = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _TILE):
        tile = rows[start : start + _TILE] - mean
        scatter += tile.T @ tile
    values, columns = np.linalg.eigh(scatter)
    return Exact(columns.T[::-1][:count], float(values[-count:].sum() / values.sum()))


def panels(study: Study, fits: Sequence[Fit]) -> list[list[Panel]]:
    """Distance and loss, for each setting and number of clients."""

    def make(title: str, own: Sequence[Fit]) -> tuple[Panel, Panel]:
        distances, losses = (family_lines(own, value) for value in (lambda fit: fit.distance, lambda fit: fit.loss))
        return (
            Panel(title, "distance to the exact\nfirst component", distances),
            Panel(title, "variance lost", losses, losses=True, limits=(MAX_LOSS, MAX_BITS)),
        )

    return fit_panels(study, fits, make)
