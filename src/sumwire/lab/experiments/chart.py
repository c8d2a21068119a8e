"""Charts: what they show, as plain data; and drawn as SVG for docs. The report draws the same data in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from sumwire.lab.display import STYLE, check_path, draw_grid, save
from sumwire.lab.experiments.base import Shown

Curve = list[tuple[float, float, float, float]]
"""x, and mean, lowest and highest y."""

MARKS = "os^Dvphd8<>*X"


def panels(experiment: Shown, lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, Curve]]:
    """By panel and series. Rows of several seeds or workloads at about the same x are one place of a curve."""
    chart = experiment.chart
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for line in lines:
        if chart.x not in line or chart.y not in line or line[chart.x] > chart.x_most:
            continue
        places = found.setdefault(f"{chart.panel}: {line[chart.panel]}", {}).setdefault(str(line[chart.series]), {})
        places.setdefault(round(float(line[chart.x]), chart.x_digits), []).append(line[chart.y])
    return {
        panel: {
            name: [(x, sum(ys) / len(ys), min(ys), max(ys)) for x, ys in sorted(places.items())]
            for name, places in curves.items()
        }
        for panel, curves in found.items()
    }


def draw(experiment: Shown, lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Panels side by side, with a band from the lowest value to the highest."""
    check_path(path)
    chart, shown = experiment.chart, panels(experiment, lines)
    columns = min(3, max(1, len(shown)))
    rows = -(-max(1, len(shown)) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2 * columns, 3.4 * rows + 0.8), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        names = list(dict.fromkeys(name for curves in shown.values() for name in curves))
        for axes, (panel, curves) in zip(grid.flat, shown.items(), strict=False):
            for name, curve in curves.items():
                place = names.index(name)
                xs, means, lows, highs = zip(*curve, strict=True)
                color = f"C{place % 10}"
                axes.plot(xs, means, marker=MARKS[place % len(MARKS)], markersize=4, color=color, label=name)
                axes.fill_between(xs, lows, highs, color=color, alpha=0.15, linewidth=0)
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
