"""Panels of lines, one for each family of schemes, with bits per dimension from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from sumwire.lab.figures import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, STYLE

UNCOMPRESSED = "uncompressed"

_LOOKS = {
    "StochasticLevels": (ORANGE, "s"),
    "Rotated": (PURPLE, "^"),
    "VariableLength": (GREEN, "v"),
    "Sampled": (FAINT, "D"),
    "Correlated": ("#E69F00", "P"),
    "Eden": (SKY, "o"),
    "Lattice": (BLUE, "*"),
    UNCOMPRESSED: (INK, "."),
}

# Many panels: text as text keeps files small, and DejaVu is wide enough for any font that takes its place.
_STYLE = {**STYLE, "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}

_NEAR_ZERO = 1e-4
"""Losses below this share are drawn on a linear scale, as they may be negative."""


@dataclass(frozen=True)
class Line:
    """Values of one family over bits; dotted if they are bounds and not measured."""

    family: str
    bits: Sequence[float]
    values: Sequence[float]
    ranges: Sequence[tuple[float, float]] = ()
    """The least and the most of each value."""
    dotted: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines with one meaning. `bar` is where values should be at most, and with how many bits."""

    title: str
    meaning: str
    lines: Sequence[Line]
    losses: bool = False
    """Values are shares, which may be negative."""
    bar: tuple[float, float] | None = None
    so_far: bool = False
    """Bits are those of all rounds until then."""


def draw(panels: Sequence[Sequence[Panel]], path: Path, title: str, subtitle: str) -> None:
    """Rows of panels under a title, with one legend for all."""
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
        figure.text(0.01, 1 - 0.36 * inch, subtitle, color="#555555", va="top")
        figure.legend(handles=_legend(lines), loc="outside lower center", ncols=5, frameon=False)
        # A date would make equal data differ.
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None, dpi=150)


def _fill(axes: Axes, panel: Panel) -> None:
    # Scales come first: limits are found as lines are drawn.
    if panel.losses:
        axes.set_yscale("symlog", linthresh=_NEAR_ZERO)
        axes.yaxis.set_major_formatter(lambda loss, _: f"{100 * loss:g}%")
        axes.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
    else:
        axes.set_yscale("log")
    if panel.so_far:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda bits, _: f"{bits:g}")
    for line in panel.lines:
        _plot(axes, line, every=3 if panel.so_far else 1)
    if not panel.so_far:
        axes.set_xlim(left=0)
    if panel.bar is not None:
        _mark(axes, *panel.bar)
    axes.set_xlabel("bits per dimension" + " sent so far" * panel.so_far)
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
    axes.minorticks_off()
    axes.grid(color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)


def _plot(axes: Axes, line: Line, every: int) -> None:
    colour, marker = _LOOKS[line.family]
    if line.dotted:
        axes.plot(line.bits, line.values, ":", color=colour, linewidth=1.1, zorder=2)
        return
    axes.plot(
        line.bits,
        line.values,
        color=colour,
        marker=marker,
        markersize=9 if marker == "*" else 5,
        markevery=every,
        linewidth=1.5,
        zorder=3,
    )
    if line.ranges:
        axes.vlines(line.bits, *zip(*line.ranges, strict=True), color=colour, linewidth=1.0, zorder=2)


def _mark(axes: Axes, most: float, bits: float) -> None:
    """Lines at the bar: what is left of and below both meets it."""
    axes.axhline(most, color=INK, linewidth=0.9, linestyle="--", zorder=1)
    axes.axvline(bits, color=INK, linewidth=0.9, linestyle="--", zorder=1)


def _legend(lines: Sequence[Line]) -> list[Line2D]:
    handles = []
    for family in dict.fromkeys(line.family for line in lines):
        colour, marker = _LOOKS[family]
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=6, linewidth=1.5, label=family))
    if any(line.dotted for line in lines):
        handles.append(Line2D([], [], color=INK, linestyle=":", linewidth=1.1, label="bound"))
    return handles
