"""What an experiment declares. How it is run, and how results are shown, is the same for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Point = Mapping[str, str | int | float | bool]
"""Parameters of one measurement. They go through JSON, and tell it from all others."""

Row = dict[str, Any]
"""What was measured, by name; JSON values."""


@dataclass(frozen=True)
class Chart:
    """Fields of rows that a chart shows: a line for each value of `series`, a panel for each value of `panel`.

    Rows with the same x in one line, say of several seeds, are drawn as their mean, with a band from the lowest to the
    highest.
    """

    x: str
    y: str
    series: str
    panel: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    x_digits: int = 6
    """Decimals of x up to which rows are at the same place."""
    x_most: float = math.inf
    """Rows beyond are only in the table."""
    stacked: bool = False
    """Bars instead of lines: one for each x, which may be a name, with a part for each series."""
    omitted: Sequence[str] = ()
    """Series that are only in the table, such as the sum of all others."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One question, and how its answer is shown."""

    name: str
    title: str
    question: str
    columns: Mapping[str, str]
    """Headings of the table, and templates of `str.format` on a row."""
    chart: Chart
    notes: str = ""
    """What a reader must know: conventions, and what is not covered."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Shown):
    """A question that measurements answer. `measure` is called in a new process for each point, and gives one or more
    rows."""

    quick: Sequence[Point]
    """Points that answer it roughly, in a minute or two on two cores."""
    full: Sequence[Point]
    """What the docs show."""
    measure: Callable[[Point], Iterable[Row]]
    timed: bool = False
    """Rows have times: one point is measured at a time."""

    def points(self, *, full: bool) -> Sequence[Point]:
        return self.full if full else self.quick


@dataclass(frozen=True, kw_only=True)
class Summary(Shown):
    """A question that results of experiments answer together; nothing is measured for it."""

    sources: Sequence[str]
    """Those experiments."""
    calculate: Callable[[Mapping[str, Sequence[Row]]], Iterable[Row]]
    """Rows, from the results of each of them; called only if all have some."""
