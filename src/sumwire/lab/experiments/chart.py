"""Charts: what they show, as plain data; and drawn as SVG for docs. The report draws the same data in the browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sumwire.lab.display import STYLE, check_path, draw_grid, save
from sumwire.lab.experiments.base import Shown

Place = float | str
Curve = list[tuple[Place, float, float, float]]
"""x, and mean, lowest and highest y."""

MARKS = "os^Dvphd8<>*X"


def panels(experiment: Shown, lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, Curve]]:
    """By panel and series. Rows of several seeds or workloads at about the same x are one place of a curve."""
    chart = experiment.chart
    found: dict[str, dict[str, dict[Place, list[float]]]] = {}
    for line in lines:
        if chart.x not in line or chart.y not in line or line[chart.series] in chart.omitted:
            continue
        if not chart.stacked and line[chart.x] > chart.x_most:
            continue
        places = found.setdefault(f"{chart.panel}: {line[chart.panel]}", {}).setdefault(str(line[chart.series]), {})
        x = str(line[chart.x]) if chart.stacked else round(float(line[chart.x]), chart.x_digits)
        places.setdefault(x, []).append(line[chart.y])
    return {
        panel: {
            name: [
                (x, sum(ys) / len(ys), min(ys), max(ys))
                for x, ys in (places.items() if chart.stacked else sorted(places.items()))
            ]
            for name, places in curves.items()
        }
        for panel, curves in found.items()
    }


def draw(experiment: Shown, lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Panels side by side: lines with a band from the lowest value to the highest, or stacked bars of means."""
    check_path(path)
    chart, shown = experiment.chart, panels(experiment, lines)
    columns = min(3, max(1, len(shown)))
    rows = -(-max(1, len(shown)) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2 * columns, 3.4 * rows + 0.8), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        names = list(dict.fromkeys(name for curves in shown.values() for name in curves))
        for axes, (panel, curves) in zip(grid.flat, shown.items(), strict=False):
            (_draw_bars if chart.stacked else _draw_lines)(axes, curves, names)
            axes.set(title=panel, xlabel=chart.x_label, ylabel=chart.y_label)
            if chart.log_x:
                axes.set_xscale("log", base=2)
            if chart.log_y:
                axes.set_yscale("log")
            draw_grid(axes)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        handles = {
            label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if handles:
            figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)), fontsize=8)
        save(figure, path)


def _draw_lines(axes: Axes, curves: Mapping[str, Curve], names: Sequence[str]) -> None:
    for name, curve in curves.items():
        place = names.index(name)
        xs, means, lows, highs = zip(*curve, strict=True)
        color = f"C{place % 10}"
        axes.plot(xs, means, marker=MARKS[place % len(MARKS)], markersize=4, color=color, label=name)
        axes.fill_between(xs, lows, highs, color=color, alpha=0.15, linewidth=0)


def _draw_bars(axes: Axes, curves: Mapping[str, Curve], names: Sequence[str]) -> None:
    heights: dict[Place, float] = dict.fromkeys((x for curve in curves.values() for x, *_ in curve), 0.0)
    for name, curve in curves.items():
        xs, means, *_ = zip(*curve, strict=True)
        axes.bar(xs, means, bottom=[heights[x] for x in xs], color=f"C{names.index(name) % 10}", label=name)
        for x, mean in zip(xs, means, strict=True):
            heights[x] += mean
    axes.tick_params(axis="x", rotation=20)
