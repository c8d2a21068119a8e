"""`sumwire lab pca`: power iteration over clients that send their products through every scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from sumwire.estimators import PCA
from sumwire.lab.display import check_path, progress_bar
from sumwire.lab.dme.data import Rows
from sumwire.lab.dme.panels import Line, Panel, draw
from sumwire.lab.dme.schemes import Entry
from sumwire.lab.dme.study import (
    MAX_BITS,
    MAX_LOSS,
    SETTINGS,
    Fit,
    Study,
    fits_table,
    limited_rounds,
    prepare,
    summary,
)

_TILE = 4096
"""Rows that are multiplied at a time."""

_COLUMNS: dict[str, Callable[[Fit], str]] = {
    "bits": lambda fit: f"{fit.bits:.2f}",
    "lost": lambda fit: f"{fit.loss:.2%}",
    "distance": lambda fit: f"{fit.distance:.4f}",
}
_CAPTION = (
    "lost: of the variance that the exact components explain; distance: of the first component to the exact one; both "
    "in the worst repetition. bits: for a value of the products, as sent by a client, with headers and terms; "
    "uncompressed 64. Drive is Eden(1). Lattice: n clients, can be added without decoding."
)


class Exact(NamedTuple):
    """The first eigenvectors of the covariance in rows, and the share of the variance that they explain."""

    components: NDArray[np.float64]
    explained: float

    def loss(self, model: PCA) -> float:
        return 1 - float(model.explained_variance_ratio_.sum()) / self.explained

    def distance(self, model: PCA) -> float:
        """Of the first component to the exact one: its sign does not matter."""
        mine, exact = model.components_[0], self.components[0]
        return float(min(np.linalg.norm(mine - exact), np.linalg.norm(mine + exact)))


def run(*, components: int, figure: Path, **options: Any) -> None:
    """Measure, print and draw; other options as those of `prepare`."""
    check_path(figure)
    out, study = Console(highlight=False), prepare(**options)
    with progress_bar(out, f"components of {study.name}", 1 + study.fits) as tick:
        exact, plain, fits = measure(study, components, tick)
    title = f"PCA of {study.name}, {components} component{'s' * (components > 1)}"
    draw(panels(study, fits), figure, title, study.note)
    for clients in study.clients:
        out.print("", fits_table(title, fits, clients, _COLUMNS, _CAPTION), "", sep="\n")
    out.print(
        f"{study.note}; exact: {exact.explained:.2%} of the variance; uncompressed, after {plain.n_iter_} rounds: "
        f"{exact.loss(plain):.2%} lost, distance {exact.distance(plain):.4f}",
        soft_wrap=True,
    )
    out.print(f"Error against bits: {figure}", soft_wrap=True)
    out.print(summary("exact PCA's explained variance", study, fits), style="bold", soft_wrap=True)


@limited_rounds()
def measure(study: Study, components: int = 1, tick: Callable[[], None] = lambda: None) -> tuple[Exact, PCA, list[Fit]]:
    """What is exact, an uncompressed model, and every scheme's fit; calls `tick` after each."""
    exact = eigenvectors(study.rows, components)

    def fit(scheme: object, clients: int, centerd: bool, repeat: int = 0) -> PCA:
        return PCA(
            components,
            scheme=scheme,
            partitions=clients,
            max_iter=study.rounds,
            centerd=centerd,
            random_state=(study.seed + repeat) % 2**32,
        ).fit(study.rows)

    def one(entry: Entry, clients: int, centerd: bool) -> Fit:
        models = [fit(entry.scheme, clients, centerd, repeat) for repeat in range(study.repeats)]
        return Fit(
            entry,
            clients,
            centerd,
            bits=fmean(model.bits_per_value_ for model in models),
            rounds=fmean(model.n_iter_ for model in models),
            loss=max(map(exact.loss, models)),
            distance=max(map(exact.distance, models)),
        )

    plain = fit(None, max(study.clients), True)
    tick()
    return exact, plain, study.fit(one, tick)


def eigenvectors(rows: Rows, count: int) -> Exact:
    """From the covariance matrix, some rows at a time."""
    mean = rows.mean(axis=0, dtype=np.float64)
    scatter = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _TILE):
        tile = rows[start : start + _TILE] - mean
        scatter += tile.T @ tile
    values, columns = np.linalg.eigh(scatter)
    return Exact(columns.T[::-1][:count], float(values[-count:].sum() / values.sum()))


def panels(study: Study, fits: Sequence[Fit]) -> list[list[Panel]]:
    """For each setting the distance and the loss; for each number of clients a column."""
    grid = []
    for centerd in study.settings:
        chosen = {n: [fit for fit in fits if (fit.clients, fit.centerd) == (n, centerd)] for n in study.clients}
        titled = [(f"{n} clients, {SETTINGS[centerd]}", own) for n, own in chosen.items()]
        grid += [
            [Panel(title, "distance to the exact\nfirst component", _lines(own, "distance")) for title, own in titled],
            [Panel(title, "variance lost", _lines(own, "loss"), True, (MAX_LOSS, MAX_BITS)) for title, own in titled],
        ]
    return grid


def _lines(fits: Sequence[Fit], value: str) -> list[Line]:
    lines = []
    for family in dict.fromkeys(fit.entry.family for fit in fits):
        own = [fit for fit in fits if fit.entry.family == family]
        lines.append(Line(family, [fit.bits for fit in own], [getattr(fit, value) for fit in own]))
    return lines
