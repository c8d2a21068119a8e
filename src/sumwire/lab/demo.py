"""`sumwire demo`: real workers train to a target over rate-limited links, with several methods in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sumwire.lab.comparison import Run, Settings, record
from sumwire.lab.comparison_report import Comparison, draw, summary, table
from sumwire.lab.display import check_path
from sumwire.lab.launch import launch
from sumwire.lab.links import Network, links
from sumwire.lab.methods import label
from sumwire.lab.tasks import TASKS, Task, check_target

_START = 300.0
_STEP = 3.0
"""Timeouts in seconds, for startup and per step: generous, because machines may be busy."""


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
) -> None:
    """Run the comparison, print the table and draw the figure."""
    task = TASKS[workload]
    target = check_target(task, task.target if target is None else target)
    check_path(figure)
    console = Console(highlight=False)
    with links(workers, rate) as network:
        console.print(network.note[0].upper() + network.note[1:], style="" if network.shaped else "yellow")
        with _progress(console, task, methods, steps or task.steps, target, workers) as watch:
            runs = compare(network, task, methods, seed=seed, steps=steps, watch=watch)
    comparison = Comparison(task.description, task.metric, target, workers, network.shaped, network.note, runs)
    draw(comparison, figure)
    console.print("", table(comparison), "", sep="\n")
    console.print(f"{task.metric.capitalize()} against seconds: {figure}", soft_wrap=True)
    console.print(summary(comparison), style="bold", soft_wrap=True)


def compare(
    network: Network,
    task: Task,
    methods: Sequence[str],
    *,
    seed: int = 0,
    steps: int | None = None,
    watch: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Run the methods one after the other in the same processes; `watch` is called after every evaluation."""
    steps = steps or task.steps
    interface = network.hosts[0].interface if network.shaped else None
    settings = Settings(task.name, tuple(methods), steps, min(task.every, steps), seed, interface)
    runs: dict[str, Run] = {}

    def on_line(line: dict[str, Any]) -> None:
        watch(record(runs, line))

    timeout = _START + _STEP * steps * len(methods)
    launch(network, "sumwire.lab.comparison", [settings.dumps()], on_line=on_line, timeout=timeout)
    return [runs[method] for method in methods]


@contextmanager
def _progress(
    console: Console, task: Task, methods: Sequence[str], steps: int, target: float, workers: int
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
