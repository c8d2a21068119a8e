"""Experiments are run point by point, each in a new process; what is there already is not measured again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sumwire.errors import ConfigError, SumwireError
from sumwire.lab.experiments import find
from sumwire.lab.experiments.base import Experiment, Point, Row
from sumwire.lab.experiments.results import Results, key_of
from sumwire.lab.experiments.table import shown


class MeasurementError(SumwireError):
    """Some points could not be measured; all others were."""


def run(names: Sequence[str], folder: Path, *, full: bool, again: bool, console: Console) -> None:
    """Measure all points of these experiments that have no results, and print a table of each.

    A run that was stopped goes on where it was: a point counts once all its rows are written.
    """
    experiments = [find(name) for name in names]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write results to {folder}: {error.strerror}; pass another --results") from None
    failures: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left:"), TimeRemainingColumn(), console=console) as progress:
        for experiment in experiments:
            results = Results(folder, experiment.name)
            points = experiment.points(full=full)
            done = set() if again else results.done()
            left = [point for point in points if key_of(point) not in done]
            task = progress.add_task(experiment.name, total=len(points), completed=len(points) - len(left))
            for point in left:
                try:
                    results.append(point, measure(experiment, point))
                except MeasurementError as error:
                    failures.append(f"{experiment.name} {key_of(point)}: {error}")
                progress.advance(task)
    for experiment in experiments:
        console.print("", shown(experiment, Results(folder, experiment.name).lines()), "", sep="\n")
    if failures:
        raise MeasurementError(f"{len(failures)} points failed; run again to try only these. The first: {failures[0]}")


def measure(experiment: Experiment, point: Point) -> list[Row]:
    """The rows of a point, from a process of its own: nothing that was measured before is in its caches."""
    # One thread: points of a small machine are comparable, whatever else runs there.
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    command = [sys.executable, "-m", "sumwire.lab.experiments.point", experiment.name, json.dumps(dict(point))]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise MeasurementError(last[0])
    rows: list[Row] = json.loads(out.splitlines()[-1])
    return rows
