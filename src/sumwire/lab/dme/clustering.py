"""`sumwire lab kmeans`: Lloyd's algorithm over clients that send their clusters' sums through every scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from sklearn.cluster import kmeans_plusplus

from sumwire.estimators import KMeans
from sumwire.lab.display import check_path, progress_bar
from sumwire.lab.dme.data import Rows
from sumwire.lab.dme.panels import UNCOMPRESSED, Line, Panel, draw
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

CENTERS = 10
SAMPLE = 4096
"""Rows that k-means++ picks the first centers from."""

FOLLOWED = ("StochasticLevels(16)", "Rotated(16)", 'VariableLength("sqrt")', "Eden(3)", "Lattice(n, 3)")
"""Whose rounds are drawn."""

_COLUMNS: dict[str, Callable[[Fit], str]] = {
    "bits": lambda fit: f"{fit.bits:.2f}",
    "lost": lambda fit: f"{fit.loss:.2%}",
    "rounds": lambda fit: f"{fit.rounds:.0f}",
}
_CAPTION = (
    "lost: inertia above that of the uncompressed run from the same first centers, in the worst "
    "repetition. bits: for a value of the sums, as sent by a client, with headers and terms; uncompressed 64. "
    f"The {CENTERS} centers are one message: k levels of VariableLength are as coarse as k/{CENTERS**0.5:.0f} for "
    "each. Drive is Eden(1). Lattice: n clients, can be added without decoding."
)


def run(*, figure: Path, **options: Any) -> None:
    """Measure, print and draw; options as those of `prepare`."""
    check_path(figure)
    out, study = Console(highlight=False), prepare(**options)
    with progress_bar(out, f"clustering {study.name}", study.repeats + study.fits) as tick:
        exact, fits = measure(study, tick)
    title = f"k-means on {study.name}, {CENTERS} centers"
    draw(panels(study, exact, fits), figure, title, study.note)
    for clients in study.clients:
        out.print("", fits_table(title, fits, clients, _COLUMNS, _CAPTION), "", sep="\n")
    out.print(f"{study.note}; uncompressed: inertia {min(exact):.6g} after {len(exact) - 1} rounds", soft_wrap=True)
    out.print(f"Inertia against bits: {figure}", soft_wrap=True)
    out.print(summary("uncompressed k-means inertia", study, fits), style="bold", soft_wrap=True)


@limited_rounds()
def measure(study: Study, tick: Callable[[], None] = lambda: None) -> tuple[list[float], list[Fit]]:
    """The first uncompressed run's inertia round by round, and every scheme's fit; calls `tick` after each."""
    starts = [first_centers(study.rows, (study.seed + repeat) % 2**32) for repeat in range(study.repeats)]

    def models(scheme: object, clients: int, centerd: bool) -> list[KMeans]:
        return [
            KMeans(
                CENTERS,
                scheme=scheme,
                partitions=clients,
                init=start,
                max_iter=study.rounds,
                centerd=centerd,
                random_state=(study.seed + repeat) % 2**32,
            ).fit(study.rows)
            for repeat, start in enumerate(starts)
        ]

    exact = models(None, max(study.clients), True)
    for _ in exact:
        tick()

    def one(entry: Entry, clients: int, centerd: bool) -> Fit:
        found = models(entry.scheme, clients, centerd)
        return Fit(
            entry,
            clients,
            centerd,
            bits=fmean(model.bits_per_value_ for model in found),
            rounds=fmean(model.n_iter_ for model in found),
            loss=max(model.inertia_ / best.inertia_ - 1 for model, best in zip(found, exact, strict=True)),
            history=tuple(inertia / exact[0].inertia_ - 1 for inertia in found[0].history_),
        )

    return exact[0].history_, study.fit(one, tick)


def first_centers(rows: Rows, seed: int) -> Rows:
    """By k-means++ on some rows."""
    few = np.random.default_rng(seed).choice(len(rows), min(SAMPLE, len(rows)), replace=False)
    return np.asarray(kmeans_plusplus(rows[few], CENTERS, random_state=seed)[0])


def panels(study: Study, exact: Sequence[float], fits: Sequence[Fit]) -> list[list[Panel]]:
    """For each setting how rounds went and where they ended; for each number of clients a column."""
    grid = []
    for centerd in study.settings:
        chosen = {n: [fit for fit in fits if (fit.clients, fit.centerd) == (n, centerd)] for n in study.clients}
        grid += [
            [_rounds(f"{n} clients, {SETTINGS[centerd]}", exact, own) for n, own in chosen.items()],
            [_ends(f"{n} clients, {SETTINGS[centerd]}", own) for n, own in chosen.items()],
        ]
    return grid


def _rounds(title: str, exact: Sequence[float], fits: Sequence[Fit]) -> Panel:
    """Loss after each round, over all that was sent until then."""
    histories = [(fit.entry.family, fit.bits, fit.history) for fit in fits if fit.entry.label in FOLLOWED]
    histories.append((UNCOMPRESSED, 64.0, tuple(inertia / min(exact) - 1 for inertia in exact)))
    lines = [
        Line(family, [bits * number for number in range(1, len(history))], history[1:])
        for family, bits, history in histories
    ]
    return Panel(title, "inertia lost, by round", lines, losses=True, cumulative=True)


def _ends(title: str, fits: Sequence[Fit]) -> Panel:
    lines = []
    for family in dict.fromkeys(fit.entry.family for fit in fits):
        own = [fit for fit in fits if fit.entry.family == family]
        lines.append(Line(family, [fit.bits for fit in own], [fit.loss for fit in own]))
    return Panel(title, "inertia lost at the end", lines, losses=True, limits=(MAX_LOSS, MAX_BITS))
