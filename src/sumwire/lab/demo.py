"""`sumwire demo`: real workers train to a target over rate-limited links, with several methods in turn.

The report is one table, one figure, one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from sumwire.lab.comparison import Point, Run, compare, find_task
from sumwire.lab.display import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    SUBTITLE,
    check_path,
    draw_grid,
    plain_table,
    save,
)
from sumwire.lab.links import links
from sumwire.lab.methods import is_ours, label
from sumwire.lab.switched import switched_links
from sumwire.lab.workloads import Workload

_COLORS = {"fp32": INK, "fp16": FAINT}
_SUMWIRE = (BLUE, SKY)
_OTHERS = (ORANGE, PURPLE, GREEN, AMBER)
_CLOSE = 1.05
"""Times within this factor count as equal: each is a single run."""


def run(
    workload: str,
    *,
    methods: Sequence[str],
    rate: float | None,
    workers: int,
    seed: int,
    steps: int | None,
    target: float | None,
    figure: Path,
    switch: bool = False,
    sites: bool = False,
    every: int | None = None,
) -> None:
    """Run the comparison, print the table and draw the figure; of `sites`, also against bytes."""
    task = find_task(workload)
    target = task.check_target(target)
    check_path(figure)
    console = Console(highlight=False)
    with switched_links(workers, rate) if switch else links(workers, rate) as network:
        console.print(network.note[0].upper() + network.note[1:], style="" if network.shaped else "yellow")
        with _progress(console, task, methods, steps or task.steps, target, workers) as watch:
            runs = compare(network, task, methods, seed=seed, steps=steps, every=every, watch=watch)
    comparison = Comparison(task.description, task.metric, target, workers, network.shaped, network.note, runs)
    draw(comparison, figure, also_bytes=sites)
    console.print("", table(comparison), "", sep="\n")
    against = "seconds and megabytes" if sites else "seconds"
    console.print(f"{task.metric.capitalize()} against {against}: {figure}", soft_wrap=True)
    console.print(summary(comparison), style="bold", soft_wrap=True)


@contextmanager
def _progress(
    console: Console, task: Workload, methods: Sequence[str], steps: int, target: float, workers: int
) -> Iterator[Callable[[Run], None]]:
    """One progress bar per method."""
    name, state = TextColumn("{task.description}"), TextColumn("{task.fields[state]}")
    with Progress(name, BarColumn(bar_width=16), MofNCompleteColumn(), state, console=console) as progress:
        bars = {method: progress.add_task(label(method), total=steps, state="") for method in methods}
        progress.update(bars[methods[0]], state=f"starting {workers} processes")

        def watch(run: Run) -> None:
            comparison = Comparison(task.description, task.metric, target, workers, True, "", [run])
            last = run.points[-1]
            text = f"{comparison.write(comparison.score_of(last))}, {last.seconds:.1f} s"
            if len(run.points) > 1:
                text += f", {1e3 * run.step_seconds:.0f} ms/step"
            if point := comparison.finish(run):
                text += f", target at {point.seconds:.1f} s"
            progress.update(bars[run.method], completed=last.step, state=text)

        yield watch


@dataclass(frozen=True)
class Comparison:
    """The runs of all methods on one task, and the target they train to."""

    task: str
    metric: str
    target: float
    workers: int
    shaped: bool
    note: str
    runs: Sequence[Run]

    @property
    def goal(self) -> str:
        return self.write(self.target) if self.metric == "accuracy" else f"loss {self.write(self.target)}"

    def write(self, score: float) -> str:
        return f"{score:.1%}" if self.metric == "accuracy" else f"{score:.3f}"

    def score_of(self, point: Point) -> float:
        return float(getattr(point, self.metric))

    def finish(self, run: Run) -> Point | None:
        return run.reached(self.metric, self.target)

    @property
    def ranking(self) -> list[Run]:
        """The runs that reached the target, fastest first."""
        times = {run.method: point.seconds for run in self.runs if (point := self.finish(run))}
        return sorted((run for run in self.runs if run.method in times), key=lambda run: times[run.method])

    def seconds(self, run: Run) -> float:
        point = self.finish(run)
        assert point is not None
        return point.seconds


def table(comparison: Comparison) -> Table:
    """Time to target and its parts, one row per method."""
    links = "" if comparison.shaped else ", over UNSHAPED links"
    shown = plain_table(
        f"{comparison.workers} workers train a {comparison.task}, to {comparison.goal}{links}",
        "method", "seconds", "of fp32's", "steps", "ms/step", "kB/step", f"final {comparison.metric}",
        caption=_caption(comparison),
    )  # fmt: skip
    base = next(
        (point.seconds for run in comparison.runs if run.method == "fp32" and (point := comparison.finish(run))), None
    )
    for run in comparison.runs:
        point = comparison.finish(run)
        shown.add_row(
            label(run.method),
            f"{point.seconds:.1f}" if point else "never",
            f"{point.seconds / base:.0%}" if point and base else "-",
            str(point.step) if point else "-",
            f"{1e3 * run.step_seconds:.0f}",
            f"{run.step_bytes / 1e3:,.0f}",
            comparison.write(run.score(comparison.metric)[-1]),
        )
    return shown


def _caption(comparison: Comparison) -> str:
    counted = (
        "counted by its interface" if comparison.shaped else "calculated for gradients only, because links are unshaped"
    )
    parts = [
        f"seconds, steps: training until an evaluation first met {comparison.goal}.",
        f"kB: sent by one rank, {counted}. ms and kB are medians.",
    ]
    if unequal := [label(run.method) for run in comparison.runs if not run.identical]:
        parts.append(f"Ranks ended with different weights: {', '.join(unequal)}.")
    return " ".join(parts)


def summary(comparison: Comparison) -> str:
    """How Sumwire compares, favorable or not."""
    ranking = comparison.ranking
    ours = [run for run in comparison.runs if is_ours(run.method)]
    if not ranking:
        return f"No method reached {comparison.goal}: give more --steps or an easier --target."
    mine = next((run for run in ranking if run in ours), None)
    first = f"{label(ranking[0].method)} was first to {comparison.goal}, in {comparison.seconds(ranking[0]):.1f} s"
    if mine is None:
        return f"{first}; Sumwire did not reach it." if ours else f"{first}."
    place = ranking.index(mine) + 1
    others = [run for run in comparison.runs if run not in ours]
    sentence = f"{label(mine.method)} reached {comparison.goal} in {comparison.seconds(mine):.1f} s"
    if others:
        sentence += ", " + ", ".join(_against(comparison, mine, other) for other in others)
        sentence += "." if place == 1 else f"; so {first.replace(f' to {comparison.goal}', '')}."
    else:
        sentence += "."
    if not comparison.shaped:
        sentence += " Links were unshaped: this says little about slow networks."
    return sentence


def _against(comparison: Comparison, mine: Run, other: Run) -> str:
    if comparison.finish(other) is None:
        return f"{label(other.method)} never"
    gain = comparison.seconds(other) / comparison.seconds(mine)
    if 1 / _CLOSE < gain < _CLOSE:
        return f"as soon as {label(other.method)}"
    return (
        f"{gain:.1f}x sooner than {label(other.method)}"
        if gain > 1
        else f"{1 / gain:.1f}x later than {label(other.method)}"
    )


def draw(comparison: Comparison, path: Path, *, also_bytes: bool = False) -> None:
    """Score over seconds of training, and over megabytes: a line per method, with a dot where it reached the target."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13.0 if also_bytes else 8.6, 5.0), layout="constrained")
        axes = figure.add_subplot(1, 2 if also_bytes else 1, 1)
        _draw_lines(axes, comparison, lambda point: point.seconds)
        _style_axes(axes, comparison)
        if also_bytes:
            for text in (axes.title, *axes.texts):
                text.set_in_layout(False)  # they may reach over both
            beside = figure.add_subplot(1, 2, 2, sharey=axes)
            _draw_lines(beside, comparison, lambda point: max(point.sent / 1e6, 1e-2))
            beside.set_xscale("log")
            beside.set_xlabel("megabytes sent by one rank")
            draw_grid(beside)
        save(figure, path)


def _draw_lines(axes: Axes, comparison: Comparison, x: Callable[[Point], float]) -> None:
    colors = {True: iter(_SUMWIRE * len(comparison.runs)), False: iter(_OTHERS * len(comparison.runs))}
    for run in comparison.runs:
        mine = is_ours(run.method)
        color = _COLORS.get(run.method) or next(colors[mine])
        axes.plot(
            [x(point) for point in run.points],
            run.score(comparison.metric),
            color=color,
            linewidth=2.4 if mine else 1.6,
            zorder=3 + mine,
            label=_entry(comparison, run),
        )
        if point := comparison.finish(run):
            score = comparison.score_of(point)
            axes.plot(x(point), score, "o", color=color, markeredgecolor="white", markersize=9, zorder=6)


def _entry(comparison: Comparison, run: Run) -> str:
    return (
        f"{label(run.method)}: {comparison.seconds(run):.1f} s"
        if comparison.finish(run)
        else f"{label(run.method)}: never"
    )


def _style_axes(axes: Axes, comparison: Comparison) -> None:
    axes.axhline(comparison.target, color=FAINT, linewidth=1, linestyle="--", zorder=1)
    text = axes.get_yaxis_transform()
    axes.text(1, comparison.target, f"{comparison.goal} ", transform=text, ha="right", va="top", color=FAINT)
    if comparison.metric == "accuracy":
        # Methods differ near the target, not far below it.
        axes.set_ylim(min(0.5, comparison.target - 0.1), 1.005)
        axes.yaxis.set_major_formatter(lambda score, _: f"{score:.0%}")
    else:
        lowest = min(min(run.score("loss")) for run in comparison.runs)
        axes.set_ylim(lowest - 0.1, max(comparison.target, lowest) + 1.0)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of training (evaluation excluded)")
    axes.set_ylabel(f"{comparison.metric} on held-out samples")
    draw_grid(axes)
    axes.legend(
        frameon=False,
        loc="lower right" if comparison.metric == "accuracy" else "upper right",
        title=f"to {comparison.goal}",
    )
    axes.set_title(f"{comparison.workers} workers train a {comparison.task}\n", loc="left", fontsize=13, color=INK)
    axes.text(0, 1.02, comparison.note.partition(":")[0], transform=axes.transAxes, color=SUBTITLE)
