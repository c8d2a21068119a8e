"""`sumwire demo`: real workers over links of a chosen rate train to a target, by several methods in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sumwire.lab.figures import check_path
from sumwire.lab.launch import launch
from sumwire.lab.links import Network, links
from sumwire.lab.methods import label
from sumwire.lab.plan import Plan, Run, add
from sumwire.lab.race import Race, draw, table, take_away
from sumwire.lab.tasks import TASKS, Task, check_target

_START = 300.0
_STEP = 3.0
"""Seconds after which something hangs, for starting and for each step: generous, since machines are busy."""


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
    """Hold the contest, print and draw."""
    task = TASKS[workload]
    target = check_target(task, task.target if target is None else target)
    check_path(figure)
    console = Console(highlight=False)
    with links(workers, rate) as network:
        console.print(network.note[0].upper() + network.note[1:], style="" if network.shaped else "yellow")
        with _progress(console, task, methods, steps or task.steps, target, workers) as watch:
            runs = compete(network, task, methods, seed=seed, steps=steps, watch=watch)
    race = Race(task.description, task.metric, target, workers, network.shaped, network.note, runs)
    draw(race, figure)
    console.print("", table(race), "", sep="\n")
    console.print(f"{task.metric.capitalize()} against seconds: {figure}", soft_wrap=True)
    console.print(take_away(race), style="bold", soft_wrap=True)


def compete(
    network: Network,
    task: Task,
    methods: Sequence[str],
    *,
    seed: int = 0,
    steps: int | None = None,
    watch: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Every method's run, one after the other in the same processes; `watch` sees each after each evaluation."""
    steps = steps or task.steps
    interface = network.hosts[0].interface if network.shaped else None
    plan = Plan(task.name, tuple(methods), steps, min(task.every, steps), seed, interface)
    runs: dict[str, Run] = {}

    def note(line: dict[str, Any]) -> None:
        watch(add(runs, line))

    timeout = _START + _STEP * steps * len(methods)
    launch(network, "sumwire.lab.contest", [plan.dumps()], on_line=note, timeout=timeout)
    return [runs[method] for method in methods]


@contextmanager
def _progress(
    console: Console, task: Task, methods: Sequence[str], steps: int, target: float, workers: int
) -> Iterator[Callable[[Run], None]]:
    """A bar for every method."""
    name, state = TextColumn("{task.description}"), TextColumn("{task.fields[state]}")
    with Progress(name, BarColumn(bar_width=16), MofNCompleteColumn(), state, console=console) as progress:
        bars = {method: progress.add_task(label(method), total=steps, state="") for method in methods}
        progress.update(bars[methods[0]], state=f"starting {workers} processes")

        def watch(run: Run) -> None:
            race = Race(task.description, task.metric, target, workers, True, "", [run])
            last = run.points[-1]
            text = f"{race.write(race.score_of(last))}, {last.seconds:.1f} s"
            if len(run.points) > 1:
                text += f", {1e3 * run.step_seconds:.0f} ms/step"
            if point := race.finish(run):
                text += f", target at {point.seconds:.1f} s"
            progress.update(bars[run.method], completed=last.step, state=text)

        yield watch
