"""`sumwire lab kmeans`: Lloyd's algorithm over clients that send the sums of their clusters, for every scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from sklearn.cluster import kmeans_plusplus

from sumwire.estimators import KMeans
from sumwire.estimators.exchange import Scheme
from sumwire.lab.display import check_path, progress_bar
from sumwire.lab.dme.schemes import UNCOMPRESSED, Entry, Line, Panel
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

CENTERS = 10
SAMPLE = 4096
"""Number of rows from which k-means++ picks the first centers."""

FOLLOWED = ("StochasticLevels(16)", "Rotated(16)", 'VariableLength("sqrt")', "Eden(3)", "Lattice(n, 3)")
"""Schemes whose rounds are drawn."""

_COLUMNS: dict[str, Callable[[Fit], str]] = {
    "bits": lambda fit: f"{fit.bits:.2f}",
    "lost": lambda fit: f"{fit.loss:.2%}",
    "rounds": lambda fit: f"{fit.rounds:.0f}",
}
_CAPTION = (
    "lost: inertia in excess of the uncompressed run from the same first centers, in the worst repetition. "
    "bits: sent by a client, per value of the sums, including headers and terms; uncompressed 64. "
    f"The {CENTERS} centers are one message: k levels of VariableLength are as coarse as k/{CENTERS**0.5:.0f} for "
    "each. Drive is Eden(1). Lattice: for n clients, payloads can be added without decoding."
)


def run(*, figure: Path, results: Path | None = None, **options: Any) -> None:
    """Measure, print the tables, draw the figure and append to the results; options as for `prepare`."""
    check_path(figure)
    console, study = Console(highlight=False), prepare(**options)
    with progress_bar(console, f"clustering {study.name}", study.repeats + study.fits) as tick:
        exact, fits = measure(study, tick)
    record_fits(study, fits, "inertia_above_percent", results)
    present(
        study,
        fits,
        panels(study, exact, fits),
        title=f"k-means on {study.name}, {CENTERS} centers",
        columns=_COLUMNS,
        caption=_CAPTION,
        reference=f"uncompressed: inertia {min(exact):.6g} after {len(exact) - 1} rounds",
        goal="uncompressed k-means inertia",
        figure=figure,
        console=console,
    )


@limited_rounds()
def measure(study: Study, tick: Callable[[], None] = lambda: None) -> tuple[list[float], list[Fit]]:
    """Inertia of the first uncompressed run, round by round, and the fits of all schemes; call `tick` after each."""
    starts = [first_centers(study.rows, (study.seed + repeat) % 2**32) for repeat in range(study.repeats)]

    def models(scheme: Scheme, clients: int, centered: bool) -> list[KMeans]:
        return [
            KMeans(
                CENTERS,
                scheme=scheme,
                partitions=clients,
                init=start,
                max_iter=study.rounds,
                centered=centered,
                random_state=(study.seed + repeat) % 2**32,
            ).fit(study.rows)
            for repeat, start in enumerate(starts)
        ]

    exact = models(None, max(study.clients), True)
    for _ in exact:
        tick()

    def one(entry: Entry, clients: int, centered: bool) -> Fit:
        found = models(entry.scheme, clients, centered)
        return Fit(
            entry,
            clients,
            centered,
            bits=fmean(model.bits_per_value_ for model in found),
            rounds=fmean(model.n_iter_ for model in found),
            loss=max(model.inertia_ / best.inertia_ - 1 for model, best in zip(found, exact, strict=True)),
            history=tuple(inertia / exact[0].inertia_ - 1 for inertia in found[0].history_),
        )

    return exact[0].history_, study.fit(one, tick)


def first_centers(rows: Rows, seed: int) -> Rows:
    """The result of k-means++ on a sample of rows."""
    few = np.random.default_rng(seed).choice(len(rows), min(SAMPLE, len(rows)), replace=False)
    return np.asarray(kmeans_plusplus(rows[few], CENTERS, random_state=seed)[0])


def panels(study: Study, exact: Sequence[float], fits: Sequence[Fit]) -> list[list[Panel]]:
    """Loss by round and final loss, for each setting and number of clients."""

    def make(title: str, own: Sequence[Fit]) -> tuple[Panel, Panel]:
        lines = family_lines(own, lambda fit: fit.loss)
        final = Panel(title, "inertia lost at the end", lines, losses=True, limits=(MAX_LOSS, MAX_BITS))
        return _rounds(title, exact, own), final

    return fit_panels(study, fits, make)


def _rounds(title: str, exact: Sequence[float], fits: Sequence[Fit]) -> Panel:
    """Loss after each round, over the bits sent so far."""
    histories = [(fit.entry.family, fit.bits, fit.history) for fit in fits if fit.entry.label in FOLLOWED]
    histories.append((UNCOMPRESSED, 64.0, tuple(inertia / min(exact) - 1 for inertia in exact)))
    lines = [
        Line(family, [bits * number for number in range(1, len(history))], history[1:])
        for family, bits, history in histories
    ]
    return Panel(title, "inertia lost, by round", lines, losses=True, cumulative=True)
