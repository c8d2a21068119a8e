"""A contest that is over, and how it is shown: one table, one figure, one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

from sumwire.lab.figures import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, STYLE
from sumwire.lab.methods import label
from sumwire.lab.plan import Point, Run

_COLOURS = {"fp32": INK, "fp16": FAINT}
_SUMWIRE = (BLUE, SKY)
_OTHERS = (ORANGE, PURPLE, GREEN, "#E69F00")
_CLOSE = 1.05
"""Times that differ by less than this factor are called equal: it is one run."""


@dataclass(frozen=True)
class Race:
    """Who ran, on what, and to where."""

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
        """Those who arrived, the first one first."""
        times = {run.method: point.seconds for run in self.runs if (point := self.finish(run))}
        return sorted((run for run in self.runs if run.method in times), key=lambda run: times[run.method])

    def seconds(self, run: Run) -> float:
        point = self.finish(run)
        assert point is not None
        return point.seconds


def table(race: Race) -> Table:
    """Time to target and what it is made of, a row for every method."""
    links = "" if race.shaped else ", over links that were NOT SHAPED"
    shown = Table(
        title=f"{race.workers} workers train a {race.task}, to {race.goal}{links}",
        title_justify="left",
        caption=_caption(race),
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("method", no_wrap=True)
    for heading in ("seconds", "of fp32's", "steps", "ms/step", "kB/step", f"final {race.metric}"):
        shown.add_column(heading, justify="right")
    base = next((point.seconds for run in race.runs if run.method == "fp32" and (point := race.finish(run))), None)
    for run in race.runs:
        point = race.finish(run)
        shown.add_row(
            label(run.method),
            f"{point.seconds:.1f}" if point else "never",
            f"{point.seconds / base:.0%}" if point and base else "-",
            str(point.step) if point else "-",
            f"{1e3 * run.step_seconds:.0f}",
            f"{run.step_bytes / 1e3:,.0f}",
            race.write(run.score(race.metric)[-1]),
        )
    return shown


def _caption(race: Race) -> str:
    counted = (
        "as its interface counted them"
        if race.shaped
        else "by calculation, for gradients alone, since nobody counts on unshaped links"
    )
    parts = [
        f"seconds, steps: of training, until an evaluation found {race.goal}.",
        f"kB: what a rank sent, {counted}; with ms, medians.",
    ]
    if unequal := [label(run.method) for run in race.runs if not run.identical]:
        parts.append(f"Ranks ended with different weights: {', '.join(unequal)}.")
    return " ".join(parts)


def take_away(race: Race) -> str:
    """Where Sumwire came in, whichever way it went."""
    ranking = race.ranking
    ours = [run for run in race.runs if run.method.startswith("sumwire")]
    if not ranking:
        return f"Nobody reached {race.goal}: give more --steps or an easier --target."
    mine = next((run for run in ranking if run in ours), None)
    first = f"{label(ranking[0].method)} was first to {race.goal}, in {race.seconds(ranking[0]):.1f} s"
    if mine is None:
        return f"{first}; Sumwire did not get there." if ours else f"{first}."
    place = ranking.index(mine) + 1
    rivals = [run for run in race.runs if run not in ours]
    sentence = f"{label(mine.method)} reached {race.goal} in {race.seconds(mine):.1f} s"
    if rivals:
        sentence += ", " + ", ".join(_against(race, mine, rival) for rival in rivals)
        sentence += "." if place == 1 else f"; so {first.replace(f' to {race.goal}', '')}."
    else:
        sentence += "."
    if not race.shaped:
        sentence += " The links were not shaped: this says little about slow networks."
    return sentence


def _against(race: Race, mine: Run, rival: Run) -> str:
    if race.finish(rival) is None:
        return f"{label(rival.method)} never"
    gain = race.seconds(rival) / race.seconds(mine)
    if 1 / _CLOSE < gain < _CLOSE:
        return f"as soon as {label(rival.method)}"
    return (
        f"{gain:.1f}x sooner than {label(rival.method)}"
        if gain > 1
        else f"{1 / gain:.1f}x later than {label(rival.method)}"
    )


def draw(race: Race, path: Path) -> None:
    """Score over seconds of training: a line per method, a dot where it reached the target."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 5.0), layout="constrained")
        axes = figure.add_subplot()
        colours = {True: iter(_SUMWIRE * len(race.runs)), False: iter(_OTHERS * len(race.runs))}
        for run in race.runs:
            mine = run.method.startswith("sumwire")
            colour = _COLOURS.get(run.method) or next(colours[mine])
            scores, times = run.score(race.metric), [point.seconds for point in run.points]
            axes.plot(
                times, scores, color=colour, linewidth=2.4 if mine else 1.6, zorder=3 + mine, label=_entry(race, run)
            )
            if point := race.finish(run):
                axes.plot(
                    point.seconds,
                    race.score_of(point),
                    "o",
                    color=colour,
                    markeredgecolor="white",
                    markersize=9,
                    zorder=6,
                )
        _dress(axes, race)
        # A date would make equal data differ.
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None, dpi=150)


def _entry(race: Race, run: Run) -> str:
    return f"{label(run.method)}: {race.seconds(run):.1f} s" if race.finish(run) else f"{label(run.method)}: never"


def _dress(axes: Axes, race: Race) -> None:
    axes.axhline(race.target, color=FAINT, linewidth=1, linestyle="--", zorder=1)
    text = axes.get_yaxis_transform()
    axes.text(1, race.target, f"{race.goal} ", transform=text, ha="right", va="top", color=FAINT)
    if race.metric == "accuracy":
        # Below, all are on their way; above, they differ.
        axes.set_ylim(min(0.5, race.target - 0.1), 1.005)
        axes.yaxis.set_major_formatter(lambda score, _: f"{score:.0%}")
    else:
        lowest = min(min(run.score("loss")) for run in race.runs)
        axes.set_ylim(lowest - 0.1, max(race.target, lowest) + 1.0)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of training (evaluation excluded)")
    axes.set_ylabel(f"{race.metric} on held-out samples")
    axes.grid(color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(
        frameon=False, loc="lower right" if race.metric == "accuracy" else "upper right", title=f"to {race.goal}"
    )
    axes.set_title(f"{race.workers} workers train a {race.task}\n", loc="left", fontsize=13, color=INK)
    axes.text(0, 1.02, race.note.partition(":")[0], transform=axes.transAxes, color="#555555")
