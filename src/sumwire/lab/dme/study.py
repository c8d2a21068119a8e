"""What k-means and PCA have in common: rows on clients, every scheme, what came of it, and whether the bar was met."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from sumwire.errors import ConfigError
from sumwire.lab.display import plain_table
from sumwire.lab.dme.data import FASHION, Rows, load
from sumwire.lab.dme.schemes import Entry, all_schemes

MAX_LOSS, MAX_BITS = 0.01, 4.0
"""A scheme should lose at most this share, with at most so many bits a dimension."""

SETTINGS = {False: "as in paper", True: "centerd"}
"""Whether clients send sums as they are, or less what all know already."""


@dataclass(frozen=True)
class Study:
    """Rows, and how they are to be clustered or projected."""

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
        """How many of every scheme."""
        return len(self.clients) * len(self.settings) * len(all_schemes(1))

    def fit(self, one: Callable[[Entry, int, bool], Fit], tick: Callable[[], None]) -> list[Fit]:
        """`one(entry, clients, centerd)` for all of them; calls `tick` after each."""
        fits = []
        for clients in self.clients:
            for centerd in self.settings:
                for entry in all_schemes(clients, self.seed):
                    fits.append(one(entry, clients, centerd))
                    tick()
        return fits


@contextmanager
def limited_rounds() -> Iterator[None]:
    """Rounds may run out before an estimator settles: that is what a limit is for, and tables tell their number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def prepare(data: str, path: Path | None, rows: int | None, centerd: bool | None, **how: Any) -> Study:
    """A study as the command line describes it."""
    settings = tuple(SETTINGS) if centerd is None else (centerd,)
    return Study(data, load(data, path=path or FASHION, rows=rows), settings=settings, **how)


@dataclass(frozen=True)
class Fit:
    """An estimator fitted through one scheme, once for each repetition."""

    entry: Entry
    clients: int
    centerd: bool
    bits: float
    """Sent for each value of a sum, with headers."""
    rounds: float
    loss: float
    """The share by which the worst repetition falls short of no compression."""
    distance: float = 0.0
    """PCA: of the first component to the exact one, in the worst repetition."""
    history: tuple[float, ...] = ()
    """k-means: the loss after each round of the first repetition."""

    @property
    def meets_the_bar(self) -> bool:
        return self.bits <= MAX_BITS and self.loss <= MAX_LOSS


def fits_table(
    title: str, fits: Sequence[Fit], clients: int, columns: Mapping[str, Callable[[Fit], str]], caption: str
) -> Table:
    """A row for every scheme; the columns once for every setting."""
    own = [fit for fit in fits if fit.clients == clients]
    settings = list(dict.fromkeys(fit.centerd for fit in own))
    shown = plain_table(f"{title}, {clients} clients", "scheme", caption=caption)
    for centerd in settings:
        for heading in columns:
            above = SETTINGS[centerd] if heading == "lost" else ""
            shown.add_column(f"{above}\n{heading}", justify="right", no_wrap=True)
    for label in dict.fromkeys(fit.entry.label for fit in own):
        by_setting = {fit.centerd: fit for fit in own if fit.entry.label == label}
        shown.add_row(label, *(write(by_setting[c]) for c in settings for write in columns.values()))
    return shown


def summary(goal: str, study: Study, fits: Sequence[Fit]) -> str:
    """Who met the bar with most clients, in each setting."""
    clients = max(study.clients)
    parts = []
    for centerd in study.settings:
        own = [fit for fit in fits if (fit.clients, fit.centerd) == (clients, centerd) and fit.meets_the_bar]
        met = ", ".join(f"{fit.entry.label} at {fit.bits:.2f}" for fit in own)
        parts.append(f"{SETTINGS[centerd]}: {met or 'none'}")
    return (
        f"Within {MAX_LOSS:.0%} of {goal} at {MAX_BITS:.0f} bits or fewer per dimension on {study.name}, "
        f"{clients} clients, {'; '.join(parts)}."
    )
