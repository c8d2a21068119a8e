"""Every scheme, with several numbers of levels or bits; and figures with one line per family of schemes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from sumwire import Lattice
from sumwire.dme import (
    Correlated,
    Drive,
    Eden,
    MeanScheme,
    Rotated,
    Sampled,
    StochasticBinary,
    StochasticLevels,
    VariableLength,
)
from sumwire.lab.display import AMBER, BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, STYLE, SUBTITLE, draw_grid, save

GROUP = 16
"""Clients that `Correlated` orders: its cost grows with their number."""

UNCOMPRESSED = "uncompressed"
_LOOKS = {
    "StochasticLevels": (ORANGE, "s"),
    "Rotated": (PURPLE, "^"),
    "VariableLength": (GREEN, "v"),
    "Sampled": (FAINT, "D"),
    "Correlated": (AMBER, "P"),
    "Eden": (SKY, "o"),
    "Lattice": (BLUE, "*"),
    UNCOMPRESSED: (INK, "."),
}
_STYLE = {**STYLE, "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
_NEAR_ZERO = 1e-4
"""Losses below this share are drawn on a linear scale, because they may be negative."""


@dataclass(frozen=True)
class Entry:
    """A scheme, its name in tables, and its line in figures."""

    label: str
    family: str
    scheme: MeanScheme | Lattice


def all_schemes(clients: int, seed: int = 0) -> list[Entry]:
    """All schemes for a number of clients, by family and then from few bits to many."""
    return [
        Entry("StochasticBinary()", "StochasticLevels", StochasticBinary(seed=seed)),
        *(Entry(f"StochasticLevels({k})", "StochasticLevels", StochasticLevels(k, seed=seed)) for k in (4, 8, 16, 32)),
        *(Entry(f"Rotated({k})", "Rotated", Rotated(k, seed=seed)) for k in (2, 4, 8, 16, 32)),
        *(Entry(f"VariableLength({k})", "VariableLength", VariableLength(k, seed=seed)) for k in (16, 32)),
        Entry('VariableLength("sqrt")', "VariableLength", VariableLength(seed=seed)),
        Entry("Sampled(Rotated(16), .5)", "Sampled", Sampled(Rotated(16, seed=seed), 0.5, seed=seed)),
        *(
            Entry(f"Correlated({k})", "Correlated", Correlated(k, workers=min(clients, GROUP), seed=seed))
            for k in (4, 16)
        ),
        Entry("Drive()", "Eden", Drive(seed=seed)),
        *(Entry(f"Eden({bits})", "Eden", Eden(bits, seed=seed)) for bits in (2, 3, 4)),
        # Only what clients send is counted: the sum is decoded where it is.
        *(
            Entry(f"Lattice(n, {bits})", "Lattice", Lattice(clients, bits, seed=seed, down_bits="exact"))
            for bits in (2, 3, 4)
        ),
    ]


# With many panels, text as text keeps files small; DejaVu is wide enough for any substitute font.


@dataclass(frozen=True)
class Line:
    """Values of one family over bits; dotted lines are bounds, not measurements."""

    family: str
    bits: Sequence[float]
    values: Sequence[float]
    ranges: Sequence[tuple[float, float]] = ()
    """Minimum and maximum of each value."""
    dotted: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines that share axes. `limits` are the largest acceptable value and number of bits."""

    title: str
    meaning: str
    lines: Sequence[Line]
    losses: bool = False
    """Values are fractions, which may be negative."""
    limits: tuple[float, float] | None = None
    cumulative: bool = False
    """Bits are summed over the rounds so far."""


def draw(panels: Sequence[Sequence[Panel]], path: Path, title: str, subtitle: str) -> None:
    """Draw a grid of panels with a title and one common legend."""
    with matplotlib.rc_context(_STYLE):
        height = 1.3 + 2.7 * len(panels)
        inch = 1 / height
        # Room for the title above all panels.
        figure = Figure(figsize=(9.2, height), layout=ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - 0.6 * inch)))
        grid = figure.subplots(len(panels), len(panels[0]), squeeze=False, sharey="row")
        for row, axes_of_row in zip(panels, grid, strict=True):
            for panel, axes in zip(row, axes_of_row, strict=True):
                _fill(axes, panel)
            axes_of_row[0].set_ylabel(row[0].meaning)
        lines = [line for row in panels for panel in row for line in panel.lines]
        figure.text(0.01, 1 - 0.1 * inch, title, fontsize=13, color=INK, va="top")
        figure.text(0.01, 1 - 0.36 * inch, subtitle, color=SUBTITLE, va="top")
        figure.legend(handles=_legend(lines), loc="outside lower center", ncols=5, frameon=False)
        save(figure, path)


def _fill(axes: Axes, panel: Panel) -> None:
    # Scales come first, because limits are determined while lines are drawn.
    if panel.losses:
        axes.set_yscale("symlog", linthresh=_NEAR_ZERO)
        axes.yaxis.set_major_formatter(lambda loss, _: f"{100 * loss:g}%")
        axes.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
    else:
        axes.set_yscale("log")
    if panel.cumulative:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda bits, _: f"{bits:g}")
    for line in panel.lines:
        _plot(axes, line, every=3 if panel.cumulative else 1)
    if not panel.cumulative:
        axes.set_xlim(left=0)
    if panel.limits is not None:
        _mark(axes, *panel.limits)
    axes.set_xlabel("bits per coordinate" + " sent so far" * panel.cumulative)
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
    axes.minorticks_off()
    draw_grid(axes)


def _plot(axes: Axes, line: Line, every: int) -> None:
    color, marker = _LOOKS[line.family]
    if line.dotted:
        axes.plot(line.bits, line.values, ":", color=color, linewidth=1.1, zorder=2)
        return
    axes.plot(
        line.bits,
        line.values,
        color=color,
        marker=marker,
        markersize=9 if marker == "*" else 5,
        markevery=every,
        linewidth=1.5,
        zorder=3,
    )
    if line.ranges:
        axes.vlines(line.bits, *zip(*line.ranges, strict=True), color=color, linewidth=1.0, zorder=2)


def _mark(axes: Axes, most: float, bits: float) -> None:
    """Dashed lines at the limits: points to the left of and below both meet them."""
    axes.axhline(most, color=INK, linewidth=0.9, linestyle="--", zorder=1)
    axes.axvline(bits, color=INK, linewidth=0.9, linestyle="--", zorder=1)


def _legend(lines: Sequence[Line]) -> list[Line2D]:
    handles = []
    for family in dict.fromkeys(line.family for line in lines):
        color, marker = _LOOKS[family]
        handles.append(Line2D([], [], color=color, marker=marker, markersize=6, linewidth=1.5, label=family))
    if any(line.dotted for line in lines):
        handles.append(Line2D([], [], color=INK, linestyle=":", linewidth=1.1, label="bound"))
    return handles
