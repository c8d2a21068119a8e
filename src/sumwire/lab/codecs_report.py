"""The report of `sumwire lab codecs`: two tables, one figure, one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from sumwire.lab.display import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    SUBTITLE,
    draw_grid,
    plain_table,
    save,
)

VERBS = ("propose", "encode", "add", "decode")
FP32_BITS = 64
"""Bits per coordinate, up plus down."""


@dataclass(frozen=True)
class Cost:
    """Bits per coordinate that one worker sends and gets in a round, and the error of the mean."""

    up: float
    down: float
    terms: float
    nmse: float

    @property
    def bits(self) -> float:
        """Total of both directions."""
        return self.up + self.down + self.terms


@dataclass(frozen=True)
class Row:
    """One codec: how to build it, its cost, and the throughput of its verbs in bytes of fp32 tensor per second."""

    label: str
    code: str
    cost: Cost
    speed: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """All measurements. Each curve goes from few bits to many."""

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
    table = plain_table(
        "What a worker sends and receives in a round, and the error of the mean",
        "codec", "up", "down", "terms", "bytes", "of fp32", "NMSE",
        caption="up, down, terms (both directions): bits per coordinate actually sent. "
        "NMSE: squared error of the mean over its square.",
    )  # fmt: skip
    for row in report.rows:
        cost = row.cost
        table.add_row(
            f"{row.label}\n[dim]{row.code}[/dim]",
            *(f"{bits:.2f}" for bits in (cost.up, cost.down, cost.terms)),
            f"{cost.bits * report.coordinates / 8:,.0f}",
            f"1/{FP32_BITS / cost.bits:.1f}",
            f"{cost.nmse:.2e}",
        )
    return table


def speed_table(report: Report) -> Table:
    """GB/s of every verb, and its time as a multiple of memcpy."""
    table = plain_table(
        f"Speed on one thread: GB/s of fp32 tensor (time as a multiple of memcpy, {_short(report.memcpy / 1e9)} GB/s)",
        "codec",
        *VERBS,
        caption=f"Gradient repeated to {report.speed_bytes / 2**20:.0f} MiB, buffers reused, medians. "
        "add: one payload, without packing. THC and uniform rotate 2**20 coordinates at once, "
        "here with Sumwire's kernels. fp16: torch's casts.",
    )
    for row in report.rows:
        cells = (
            f"{_short(row.speed[verb] / 1e9)} ({_short(report.memcpy / row.speed[verb])}x)"
            if verb in row.speed
            else "-"
            for verb in VERBS
        )
        table.add_row(row.label, *cells)
    return table


def _short(number: float) -> str:
    """Three significant digits, or the whole number."""
    return f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def summary(report: Report) -> str:
    """The comparison at equal bytes, favorable or not."""
    mine, theirs, half = report.same_bits.cost, report.thc.cost, report.fp16.cost
    size = mine.bits / theirs.bits
    amount = f"Same bytes ({size - 1:+.1%})" if abs(size - 1) < 0.02 else f"{size:.2f}x the bytes"
    return (
        f"{amount}, {_less_error(mine, theirs)} than the {report.thc.label}; "
        f"fp16 has {half.nmse:.0e} with {half.bits / mine.bits:.1f}x the bytes."
    )


def _less_error(mine: Cost, theirs: Cost) -> str:
    gain = theirs.nmse / mine.nmse
    return f"{gain:.1f}x less error" if gain >= 1 else f"{1 / gain:.1f}x more error"


def draw(report: Report, path: Path) -> None:
    """NMSE over bits sent: a line per codec, fp16 as one point, an arrow at equal bytes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 5.8), layout="constrained")
        axes = figure.add_subplot()
        middle = len(report.curves["default"]) // 2
        # Labels go where the lines are apart for every workload: the first two at the top left.
        _line(axes, report.curves["uniform"], PURPLE, "s-", 0, "uniform table", (-8, 0))
        _line(axes, report.curves["thc"], ORANGE, "^-", 0, "THC paper's recipe", (8, 0))
        _line(axes, report.curves["fixed"], GREEN, "v-", middle + 2, 'Sumwire, widths="fixed"', (9, 4))
        _line(axes, report.curves["default"], SKY, "o-", middle + 3, "Sumwire, bits given", (9, -5))
        _line(axes, report.curves["split"], BLUE, "*-", middle - 1, "Sumwire, total_bits given", (-9, -5))
        _arrow(axes, report)
        fp16 = report.fp16.cost
        axes.plot(fp16.bits, fp16.nmse, "D", color=INK, markersize=6)
        _write(axes, "fp16", fp16, (-9, 0), INK)
        _style_axes(axes, report)
        save(figure, path)


def _line(
    axes: Axes, costs: Sequence[Cost], color: str, style: str, at: int, text: str, shift: tuple[float, float]
) -> None:
    bits, errors = [cost.bits for cost in costs], [cost.nmse for cost in costs]
    axes.plot(bits, errors, style, color=color, markersize=8 if "*" in style else 5, linewidth=1.8)
    _write(axes, text, costs[min(at, len(costs) - 1)], shift, color)


def _arrow(axes: Axes, report: Report) -> None:
    """From the setting published in the paper to the codec with the same total bits."""
    worse, better = report.thc.cost, report.same_bits.cost
    axes.plot(worse.bits, worse.nmse, "^", color="white", markeredgecolor=ORANGE, markeredgewidth=1.8, markersize=9)
    axes.plot(better.bits, better.nmse, "*", color=BLUE, markeredgecolor="white", markersize=16, zorder=5)
    line = {"arrowstyle": "-|>", "color": INK, "shrinkA": 6, "shrinkB": 7, "linewidth": 1.2}
    axes.annotate("", (better.bits, better.nmse), (worse.bits, worse.nmse), arrowprops=line)
    _write(axes, report.thc.label, worse, (10, 15), ORANGE)
    _write(axes, f"$\\downarrow$ {_less_error(better, worse)} in {better.bits:.0f} bits", worse, (10, 2), INK)


def _write(axes: Axes, text: str, at: Cost, shift: tuple[float, float], color: str) -> None:
    """Text beside a data point, shifted by `shift` typographic points and aligned to that side."""
    across, up = shift
    axes.annotate(
        text,
        (at.bits, at.nmse),
        xytext=shift,
        textcoords="offset points",
        color=color,
        ha="left" if across > 0 else "right",
        va="bottom" if up > 0 else "top" if up < 0 else "center",
    )


def _style_axes(axes: Axes, report: Report) -> None:
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    fewest = min(cost.bits for costs in report.curves.values() for cost in costs)
    ticks = [tick for tick in (2, 3, 4, 6, 8, 12, 16, 24, 32) if tick > fewest / 1.7]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(fewest / 1.8, 36)
    axes.set_xlabel("bits per coordinate: up + down + terms (points: 1 to 8 bits up)")
    axes.set_ylabel("NMSE of the mean")
    draw_grid(axes)
    workers = f"{report.workers} worker" + "s" * (report.workers > 1)
    axes.set_title(f"Error of the averaged gradient, {workers}\n", loc="left", fontsize=13, color=INK)
    subtitle = f"{report.workload}, {report.coordinates:,} coordinates"
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, color=SUBTITLE)
