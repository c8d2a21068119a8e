"""What the k-means and PCA experiments share: rows on clients, a fit per scheme, and limits on loss and bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from sumwire.errors import ConfigError
from sumwire.lab.display import plain_table
from sumwire.lab.dme.schemes import Entry, Line, Panel, all_schemes, draw
from sumwire.lab.images import FASHION, Rows, load
from sumwire.lab.record import Record

MAX_LOSS, MAX_BITS = 0.01, 4.0
"""A scheme should lose at most this share, with at most this many bits per coordinate."""

SETTINGS = {False: "as in paper", True: "centered"}
"""Whether clients send plain sums, or sums minus what everyone already knows."""


@dataclass(frozen=True)
class Study:
    """Rows, and how to cluster or project them."""

    name: str
    rows: Rows
    clients: Sequence[int] = (10, 100)
    settings: Sequence[bool] = (False, True)
    rounds: int = 30
    repeats: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.rows) < max(self.clients):
            raise ConfigError(
                f"{max(self.clients)} clients need a row each, and there are {len(self.rows)}: "
                "lower --clients or raise --rows"
            )

    @property
    def note(self) -> str:
        count, width = self.rows.shape
        repeats = f", {self.repeats} repetitions" if self.repeats > 1 else ""
        return f"{count:,} rows, padded to {width:,} pixels{repeats}, seed {self.seed}"

    @property
    def fits(self) -> int:
        """Number of fits in the study."""
        return len(self.clients) * len(self.settings) * len(all_schemes(1))

    def fit(self, one: Callable[[Entry, int, bool], Fit], tick: Callable[[], None]) -> list[Fit]:
        """`one(entry, clients, centered)` for every combination; call `tick` after each."""
        fits = []
        for clients in self.clients:
            for centered in self.settings:
                for entry in all_schemes(clients, self.seed):
                    fits.append(one(entry, clients, centered))
                    tick()
        return fits


@contextmanager
def limited_rounds() -> Iterator[None]:
    """Ignore warnings about convergence: the number of rounds is limited on purpose, and tables show it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def prepare(data: str, path: Path | None, rows: int | None, centered: bool | None, **options: Any) -> Study:
    """The study that command line options describe."""
    settings = tuple(SETTINGS) if centered is None else (centered,)
    return Study(data, load(data, path=path or FASHION, rows=rows), settings=settings, **options)


@dataclass(frozen=True)
class Fit:
    """An estimator fitted with one scheme, once per repetition."""

    entry: Entry
    clients: int
    centered: bool
    bits: float
    """Bits sent per value of a sum, including headers."""
    rounds: float
    loss: float
    """Relative loss of the worst repetition against no compression."""
    distance: float = 0.0
    """PCA: distance of the first component from the exact one, in the worst repetition."""
    history: tuple[float, ...] = ()
    """k-means: the loss after each round of the first repetition."""

    @property
    def within_limits(self) -> bool:
        return self.bits <= MAX_BITS and self.loss <= MAX_LOSS


def record_fits(study: Study, fits: Sequence[Fit], loss: str, results: Path | None) -> None:
    """Append a line per fit; `loss` is what its loss is called there."""
    record, (count, width) = Record(results, seed=study.seed), study.rows.shape
    for fit in fits:
        record.add(
            data="Fashion-MNIST" if study.name == "fashion-mnist" else study.name,
            rows=count,
            features=width,
            clients=fit.clients,
            scheme=fit.entry.label,
            variant=SETTINGS[fit.centered],
            repeats=study.repeats,
            bits_per_value=fit.bits,
            **{loss: 100 * fit.loss},
        )


def fits_table(
    title: str, fits: Sequence[Fit], clients: int, columns: Mapping[str, Callable[[Fit], str]], caption: str
) -> Table:
    """One row per scheme; the columns are repeated for every setting."""
    own = [fit for fit in fits if fit.clients == clients]
    settings = list(dict.fromkeys(fit.centered for fit in own))
    shown = plain_table(f"{title}, {clients} clients", "scheme", caption=caption)
    for centered in settings:
        for heading in columns:
            above = SETTINGS[centered] if heading == "lost" else ""
            shown.add_column(f"{above}\n{heading}", justify="right", no_wrap=True)
    for label in dict.fromkeys(fit.entry.label for fit in own):
        by_setting = {fit.centered: fit for fit in own if fit.entry.label == label}
        shown.add_row(label, *(write(by_setting[c]) for c in settings for write in columns.values()))
    return shown


def summary(goal: str, study: Study, fits: Sequence[Fit]) -> str:
    """The schemes within the limits, for the largest number of clients and each setting."""
    clients = max(study.clients)
    parts = []
    for centered in study.settings:
        own = [fit for fit in fits if (fit.clients, fit.centered) == (clients, centered) and fit.within_limits]
        met = ", ".join(f"{fit.entry.label} at {fit.bits:.2f}" for fit in own)
        parts.append(f"{SETTINGS[centered]}: {met or 'none'}")
    return (
        f"Within {MAX_LOSS:.0%} of {goal} at {MAX_BITS:.0f} bits or fewer per coordinate on {study.name}, "
        f"{clients} clients, {'; '.join(parts)}."
    )


def fit_panels(
    study: Study, fits: Sequence[Fit], make: Callable[[str, Sequence[Fit]], tuple[Panel, Panel]]
) -> list[list[Panel]]:
    """For each setting two rows of panels, made by `make(title, fits)`; one column per number of clients."""
    grid: list[list[Panel]] = []
    for centered in study.settings:
        chosen = {n: [fit for fit in fits if (fit.clients, fit.centered) == (n, centered)] for n in study.clients}
        pairs = [make(f"{n} clients, {SETTINGS[centered]}", own) for n, own in chosen.items()]
        grid += [[upper for upper, _ in pairs], [lower for _, lower in pairs]]
    return grid


def family_lines(fits: Sequence[Fit], value: Callable[[Fit], float]) -> list[Line]:
    """One line per family of schemes: a value of each fit over its bits."""
    lines = []
    for family in dict.fromkeys(fit.entry.family for fit in fits):
        own = [fit for fit in fits if fit.entry.family == family]
        lines.append(Line(family, [fit.bits for fit in own], [value(fit) for fit in own]))
    return lines


def present(
    study: Study,
    fits: Sequence[Fit],
    panels: Sequence[Sequence[Panel]],
    *,
    title: str,
    columns: Mapping[str, Callable[[Fit], str]],
    caption: str,
    reference: str,
    goal: str,
    figure: Path,
    console: Console,
) -> None:
    """Draw the figure; print a table per number of clients, the uncompressed reference and the summary."""
    draw(panels, figure, title, study.note)
    for clients in study.clients:
        console.print("", fits_table(title, fits, clients, columns, caption), "", sep="\n")
    console.print(f"{study.note}; {reference}", soft_wrap=True)
    console.print(f"Figure: {figure}", soft_wrap=True)
    console.print(summary(goal, study, fits), style="bold", soft_wrap=True)
