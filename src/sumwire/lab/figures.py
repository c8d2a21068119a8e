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
BLUE, GREEN, ORANGE, PURPLE, INK, FAINT = "#0072B2", "#009E73", "#D55E00", "#AA4499", "#222222", "#8a8a8a"

_STYLE: dict[str, Any] = {
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
    table = _table("Speed on one thread: GB/s of fp32 tensor (time, x memcpy)")
    for verb in VERBS:
        table.add_column(verb, justify="right")
    for row in report.rows:
        cells = (
            f"{row.speed[verb] / 1e9:.1f} ({report.memcpy / row.speed[verb]:.2f}x)" if verb in row.speed else "-"
            for verb in VERBS
        )
        table.add_row(row.label, *cells)
    table.add_row("memcpy", "", f"{report.memcpy / 1e9:.1f} (1.00x)", "", "")
    table.caption = (
        f"Gradient repeated to {report.speed_bytes / 2**20:.0f} MiB, buffers reused, medians. "
        "add: per payload, lookup and add without packing. fp16: NumPy's casts."
    )
    return table


def _table(title: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", caption_justify="left", pad_edge=False)
    table.add_column("codec")
    return table


def take_away(report: Report) -> str:
    """The comparison at equal bytes, whichever way it came out."""
    mine, theirs, half = report.same_bits.cost, report.thc.cost, report.fp16.cost
    return (
        f"{_bytes_and_error(mine, theirs)} than the paper's setting; "
        f"fp16's error is {half.nmse:.0e}, for {half.bits / mine.bits:.1f}x the bytes."
    )


def _bytes_and_error(mine: Cost, theirs: Cost) -> str:
    size = mine.bits / theirs.bits
    amount = "Same bytes" if abs(size - 1) < 0.02 else f"{size:.2f}x the bytes"
    gain = theirs.nmse / mine.nmse
    return f"{amount}, {gain:.1f}x less error" if gain >= 1 else f"{amount}, {1 / gain:.1f}x more error"


def check_path(path: Path) -> None:
    """Refuse a path that cannot be drawn to, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot draw {str(path)!r}: name a file that ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot draw {str(path)!r}: there is no directory {str(path.parent)!r}, create it first")


def draw(report: Report, path: Path) -> None:
    """NMSE over bits on the wire: a line per codec, fp16 as one point, an arrow at equal bytes."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 5.4), layout="constrained")
        axes = figure.add_subplot()
        last = len(report.curves["default"]) - 1
        # Beside which point a line's text stands: where these lines are apart for every workload.
        _line(axes, report.curves["uniform"], PURPLE, "s", 0, "uniform table", (-8, 0))
        _line(axes, report.curves["paper"], ORANGE, "^", 0, "THC, the paper's recipe", (8, 0))
        _line(axes, report.curves["fixed"], GREEN, "v", min(6, last), "Sumwire, one width", (9, 3))
        _line(axes, report.curves["default"], BLUE, "o", min(5, last), "Sumwire, bits follow the energy", (-9, -5))
        _arrow(axes, report)
        fp16 = report.fp16.cost
        axes.plot(fp16.bits, fp16.nmse, "D", color=INK, markersize=6)
        _write(axes, "fp16", fp16, (-9, 0), INK)
        _dress(axes, report)
        # A date would make equal data differ.
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=150)


def _line(
    axes: Axes, costs: Sequence[Cost], colour: str, marker: str, at: int, text: str, shift: tuple[float, float]
) -> None:
    bits, errors = [cost.bits for cost in costs], [cost.nmse for cost in costs]
    axes.plot(bits, errors, color=colour, marker=marker, markersize=5, linewidth=1.8)
    _write(axes, text, costs[at], shift, colour)


def _arrow(axes: Axes, report: Report) -> None:
    """From the paper's setting as published to the codec with the same bits in all."""
    worse, better = report.thc.cost, report.same_bits.cost
    axes.plot(worse.bits, worse.nmse, "^", color="white", markeredgecolor=ORANGE, markeredgewidth=1.8, markersize=9)
    axes.plot(better.bits, better.nmse, "*", color=BLUE, markeredgecolor="white", markersize=16, zorder=5)
    line = {"arrowstyle": "-|>", "color": INK, "shrinkA": 6, "shrinkB": 7, "linewidth": 1.2}
    axes.annotate("", (better.bits, better.nmse), (worse.bits, worse.nmse), arrowprops=line)
    _write(axes, "as published", worse, (9, 5), ORANGE)
    _write(axes, f"{report.same_bits.label}:\n{_bytes_and_error(better, worse).lower()}", better, (-12, -2), INK)


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
    axes.set_xlim(0, 33.5)
    axes.set_xticks(range(0, 33, 4))
    axes.set_xlabel("bits per coordinate on the wire: up + down + terms (points: 1 to 8 bits up)")
    axes.set_ylabel("NMSE of the mean")
    axes.grid(color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(
        f"Error of the averaged gradient, {report.workers} workers\n", loc="left", fontsize=13, color=INK
    )
    subtitle = f"{report.workload}, {report.coordinates:,} coordinates"
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, color="#555555")
