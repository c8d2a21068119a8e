"""The report of `sumwire plan`: where costs come from, a table, reasons, and step time against link rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from sumwire.lab.calibration import save
from sumwire.lab.display import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    STYLE,
    SUBTITLE,
    check_path,
    draw_grid,
    plain_table,
)
from sumwire.lab.display import save as save_figure
from sumwire.lab.links import MAX_RATE, format_rate
from sumwire.lab.plan import Plan, plan
from sumwire.train.options import BITS

SLOWEST = 1e7
"""Of the figure's links, in bit/s."""
POINTS = 120
LINES = {
    "fp32": INK,
    "bf16": FAINT,
    "8 bits": GREEN,
    f"{BITS} bits": BLUE,
    f"{BITS} bits, server": PURPLE,
    f"{BITS} bits, switch": AMBER,
    f"DiLoCo, {BITS} bits": ORANGE,
}


def run(*, parameters: float | None, calibrate: bool, figure: Path, **options: Any) -> None:
    """What `sumwire plan` does: measure the machine if asked to, and plan for a model if one is given."""
    console = Console()
    if parameters is not None:
        check_path(figure)
    if calibrate:
        from sumwire.lab.calibrate import calibrate as measure  # which needs torch, as nothing else here does

        machine = measure()
        console.print(f"Calibrated {machine.name}: {save(machine)}", soft_wrap=True)
    if parameters is None:
        return
    found = plan(parameters, **options)
    console.print("", table(found), "", sep="\n")
    for line in reasons(found):
        console.print(line, soft_wrap=True, highlight=False)
    draw(found, figure)
    console.print(f"Step time against link rate: {figure}", soft_wrap=True)


def table(found: Plan) -> Table:
    """Milliseconds of a step and of its parts, for every option."""
    shown = plain_table(
        f"{found.job.values:,} parameters, {found.job.workers} workers, {_link(found)}",
        "option", "ms per step", "of fp32", "exchange", "wire", "latency", "encode", "add", "decode",
        caption="Parts in ms, each as if it ran alone: they overlap with each other and with the backward pass. add: "
        "also sending and receiving. " + source(found),
    )  # fmt: skip
    base = found.predictions["fp32"].step
    for option in found.options:
        each = found.predictions[option.name]
        parts = (each.exchange, each.wire, each.latency, each.cpu("copy") + each.cpu("encode"))
        cells = [f"{1e3 * value:.1f}" for value in (*parts, each.cpu("add"), each.cpu("decode"))]
        style = "bold" if option == found.recommended else None
        share = f"{100 * each.step / base:.0f} %" if base else "-"
        shown.add_row(option.name, f"{1e3 * each.step:.1f}", share, *cells, style=style)
    return shown


def source(found: Plan) -> str:
    """Where the costs of kernels and collectives come from."""
    doubt = " Where the CPU is the limit, compressed exchanges took up to 1.6 times as long (docs/plan.md)."
    if found.calibrated:
        return f"Costs were measured on {found.machine.name}.{doubt}"
    return f"Costs are those of {found.machine.name}: not measured here, `sumwire plan --calibrate` does that.{doubt}"


def reasons(found: Plan) -> list[str]:
    """The choice and its reasons, one per line."""
    return [f"Recommended: {found.recommended.code}", *(f"- {reason}" for reason in found.reasons())]


def draw(found: Plan, path: Path) -> None:
    """A line per option; the given link and the break-even rate."""
    rates = [SLOWEST * (MAX_RATE / SLOWEST) ** (k / (POINTS - 1)) for k in range(POINTS)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 5.4), layout="constrained")
        axes = figure.add_subplot()
        for name, color in LINES.items():
            times = [1e3 * found.step(name, rate) for rate in rates]
            width = 2.6 if name == found.recommended.name else 1.5
            axes.plot(rates, times, color=color, linewidth=width, label=name)
        if found.link.rate is not None:
            _mark(axes, found.link.rate, "this link", INK)
        even = found.break_even()
        if SLOWEST < even < MAX_RATE:
            _mark(axes, even, "break-even with fp32", BLUE)
        _style_axes(axes, found)
        save_figure(figure, path)


def _mark(axes: Axes, rate: float, text: str, color: str) -> None:
    axes.axvline(rate, color=color, linewidth=1, linestyle=":")
    where = axes.get_xaxis_transform()
    axes.text(rate, 0.99, f"{text} ", transform=where, color=color, rotation=90, va="top", ha="right")


def _style_axes(axes: Axes, found: Plan) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = (1e7, 1e8, 1e9, 1e10, 1e11)
    axes.set_xticks(ticks, [format_rate(tick) for tick in ticks])
    axes.set_xlabel("link rate")
    axes.set_ylabel("ms per step")
    draw_grid(axes)
    axes.legend(frameon=False, fontsize=9)
    workers = f"{found.job.workers} worker" + "s" * (found.job.workers > 1)
    axes.set_title(f"Predicted step time, {workers}\n", loc="left", fontsize=13, color=INK)
    subtitle = f"{found.job.values:,} parameters, {1e3 * found.job.compute:g} ms of compute"
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, color=SUBTITLE)


def _link(found: Plan) -> str:
    rate = "no limit" if found.link.rate is None else format_rate(found.link.rate)
    return f"{rate}, {1e3 * found.link.round_trip:g} ms round trip, {1e3 * found.job.compute:g} ms of compute per step"
