"""A comparison of codecs, and how it is shown: two tables, one figure, one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

from sumwire.errors import ConfigError

FORMATS = (".svg", ".png", ".pdf")
VERBS = ("propose", "encode", "add", "decode")
FP32_BITS = 64
"""Per coordinate, up and down."""

# From Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, SKY, GREEN, ORANGE, PURPLE = "#0072B2", "#3399DD", "#009E73", "#D55E00", "#AA4499"
INK, FAINT = "#222222", "#8a8a8a"

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "svg.hashsalt": "sumwire",  # equal data, equal bytes
}


@dataclass(frozen=True)
class Cost:
    """Bits per coordinate that one worker sends and gets in a round, and the error of the mean."""

    up: float
    down: float
    terms: float
    nmse: float

    @property
    def bits(self) -> float:
        """All that crosses the wire, both ways."""
        return self.up + self.down + self.terms


@dataclass(frozen=True)
class Row:
    """One codec: how to build it, its cost, and the bytes of fp32 tensor per second of its verbs."""

    label: str
    code: str
    cost: Cost
    speed: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """What was measured. `curves` go from few bits to many."""

    workload: str
    workers: int
    coordinates: int
    sumwire: Row
    same_bits: Row
    thc: Row
    uniform: Row
    fp16: Row
    curves: Mapping[str, Sequence[Cost]]
    memcpy: float
    speed_bytes: int

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.sumwire, self.same_bits, self.thc, self.uniform, self.fp16


def cost_table(report: Report) -> Table:
    """Bits, bytes and error of every row."""
    table = _table("What a worker sends and gets in a round, and the error of the mean")
    for heading in ("up", "down", "terms", "bytes", "of fp32", "NMSE"):
        table.add_column(heading, justify="right")
    for row in report.rows:
        cost = row.cost
        table.add_row(
            f"{row.label}\n[dim]{row.code}[/dim]",
            *(f"{bits:.2f}" for bits in (cost.up, cost.down, cost.terms)),
            f"{cost.bits * report.coordinates / 8:,.0f}",
            f"1/{FP32_BITS / cost.bits:.1f}",
            f"{cost.nmse:.2e}",
        )
    table.caption = (
        "up, down, terms (both ways): bits per coordinate actually sent. "
        "NMSE: squared error of the mean over its square."
    )
    return table


def speed_table(report: Report) -> Table:
    """GB/s of every verb, and its time as a multiple of memcpy's."""
    table = _table(f"Speed on one thread: GB/s of fp32 tensor (time, x memcpy's {_short(report.memcpy / 1e9)} GB/s)")
    for verb in VERBS:
        table.add_column(verb, justify="right")
    for row in report.rows:
        cells = (
            f"{_short(row.speed[verb] / 1e9)} ({_short(report.memcpy / row.speed[verb])}x)"
            if verb in row.speed
            else "-"
            for verb in VERBS
        )
        table.add_row(row.label, *cells)
    table.caption = (
        f"Gradient repeated to {report.speed_bytes / 2**20:.0f} MiB, buffers reused, medians. "
        "add: one payload, without packing for the wire. THC and uniform rotate 2**20 coordinates at once, "
        "here in Sumwire's kernels. fp16: torch's casts."
    )
    return table


def _short(number: float) -> str:
    """Three digits, as far as they are worth it."""
    return f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def _table(title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("codec", no_wrap=True)
    return table


def take_away(report: Report) -> str:
    """The comparison at equal bytes, whichever way it came out."""
    mine, theirs, half = report.same_bits.cost, report.thc.cost, report.fp16.cost
    size = mine.bits / theirs.bits
    amount = f"Same bytes ({size - 1:+.1%})" if abs(size - 1) < 0.02 else f"{size:.2f}x the bytes"
    return (
        f"{amount}, {_less_error(mine, theirs)} than the {report.thc.label}; "
        f"fp16 comes to {half.nmse:.0e} with {half.bits / mine.bits:.1f}x the bytes."
    )


def _less_error(mine: Cost, theirs: Cost) -> str:
    gain = theirs.nmse / mine.nmse
    return f"{gain:.1f}x less error" if gain >= 1 else f"{1 / gain:.1f}x more error"


def check_path(path: Path) -> None:
    """Refuse a path that cannot be drawn to, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot draw {str(path)!r}: name a file that ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot draw {str(path)!r}: there is no directory {str(path.parent)!r}, create it first")


def draw(report: Report, path: Path) -> None:
    """NMSE over bits on the wire: a line per codec, fp16 as one point, an arrow at equal bytes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 5.8), layout="constrained")
        axes = figure.add_subplot()
        middle = len(report.curves["default"]) // 2
        # Texts stand where the lines are apart, whatever the workload: the first two at the top left.
        _line(axes, report.curves["uniform"], PURPLE, "s-", 0, "uniform table", (-8, 0))
        _line(axes, report.curves["thc"], ORANGE, "^-", 0, "THC paper's recipe", (8, 0))
        _line(axes, report.curves["fixed"], GREEN, "v-", middle + 2, 'Sumwire, widths="fixed"', (9, 4))
        _line(axes, report.curves["default"], SKY, "o-", middle + 3, "Sumwire, bits given", (9, -5))
        _line(axes, report.curves["split"], BLUE, "*-", middle - 1, "Sumwire, total_bits given", (-9, -5))
        _arrow(axes, report)
        fp16 = report.fp16.cost
        axes.plot(fp16.bits, fp16.nmse, "D", color=INK, markersize=6)
        _write(axes, "fp16", fp16, (-9, 0), INK)
        _dress(axes, report)
        # A date would make equal data differ.
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=150)


def _line(
    axes: Axes, costs: Sequence[Cost], colour: str, style: str, at: int, text: str, shift: tuple[float, float]
) -> None:
    bits, errors = [cost.bits for cost in costs], [cost.nmse for cost in costs]
    axes.plot(bits, errors, style, color=colour, markersize=8 if "*" in style else 5, linewidth=1.8)
    _write(axes, text, costs[min(at, len(costs) - 1)], shift, colour)


def _arrow(axes: Axes, report: Report) -> None:
    """From the paper's setting as published to the codec with the same bits in all."""
    worse, better = report.thc.cost, report.same_bits.cost
    axes.plot(worse.bits, worse.nmse, "^", color="white", markeredgecolor=ORANGE, markeredgewidth=1.8, markersize=9)
    axes.plot(better.bits, better.nmse, "*", color=BLUE, markeredgecolor="white", markersize=16, zorder=5)
    line = {"arrowstyle": "-|>", "color": INK, "shrinkA": 6, "shrinkB": 7, "linewidth": 1.2}
    axes.annotate("", (better.bits, better.nmse), (worse.bits, worse.nmse), arrowprops=line)
    _write(axes, report.thc.label, worse, (10, 15), ORANGE)
    _write(axes, f"$\\downarrow$ {_less_error(better, worse)} in {better.bits:.0f} bits", worse, (10, 2), INK)


def _write(axes: Axes, text: str, at: Cost, shift: tuple[float, float], colour: str) -> None:
    """Text beside a point, `shift` typographic points away and aligned to that side."""
    across, up = shift
    axes.annotate(
        text,
        (at.bits, at.nmse),
        xytext=shift,
        textcoords="offset points",
        color=colour,
        ha="left" if across > 0 else "right",
        va="bottom" if up > 0 else "top" if up < 0 else "center",
    )


def _dress(axes: Axes, report: Report) -> None:
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    fewest = min(cost.bits for costs in report.curves.values() for cost in costs)
    ticks = [tick for tick in (2, 3, 4, 6, 8, 12, 16, 24, 32) if tick > fewest / 1.7]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(fewest / 1.8, 36)
    axes.set_xlabel("bits per coordinate on the wire: up + down + terms (points: 1 to 8 bits up)")
    axes.set_ylabel("NMSE of the mean")
    axes.grid(color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)
    workers = f"{report.workers} worker" + "s" * (report.workers > 1)
    axes.set_title(f"Error of the averaged gradient, {workers}\n", loc="left", fontsize=13, color=INK)
    subtitle = f"{report.workload}, {report.coordinates:,} coordinates"
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, color="#555555")
