"""Experiments are run point by point, each in a new process; what is there already is not measured again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sumwire.errors import ConfigError, SumwireError
from sumwire.lab.experiments import find
from sumwire.lab.experiments.base import Experiment, Point, Row
from sumwire.lab.experiments.results import Results, key_of
from sumwire.lab.experiments.table import shown

_POLL = 0.2
"""Seconds after which a process that must end is noticed."""
_CLEANUP = 60.0
"""Seconds that it then has to end its ranks and remove its links."""

Job = tuple[Experiment, Point]


class MeasurementError(SumwireError):
    """Some points could not be measured; all others were."""


def run(names: Sequence[str], folder: Path, *, full: bool, again: bool, jobs: int, console: Console) -> None:
    """Measure all points of these experiments that have no results, and print a table of each.

    A run that was stopped goes on where it was: a point counts once all its rows are written. `jobs` points are
    measured at the same time; those of timed experiments one by one, after the others.
    """
    experiments = [find(name) for name in names]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write results to {folder}: {error.strerror}; pass another --results") from None
    failures: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left:"), TimeRemainingColumn(), console=console) as progress:
        tasks: dict[str, TaskID] = {}
        left: list[Job] = []
        for experiment in experiments:
            points = experiment.points(full=full)
            done = set() if again else Results(folder, experiment.name).done()
            missing = [point for point in points if key_of(point) not in done]
            completed = len(points) - len(missing)
            tasks[experiment.name] = progress.add_task(experiment.name, total=len(points), completed=completed)
            left += [(experiment, point) for point in missing]
        for (experiment, point), found in _measured(left, jobs):
            if isinstance(found, MeasurementError):
                failures.append(f"{experiment.name} {key_of(point)}: {found}")
            else:
                Results(folder, experiment.name).append(point, found)
            progress.advance(tasks[experiment.name])
    for experiment in experiments:
        console.print("", shown(experiment, Results(folder, experiment.name).lines()), "", sep="\n")
    if failures:
        raise MeasurementError(f"{len(failures)} points failed; run again to try only these. The first: {failures[0]}")


def _measured(left: Sequence[Job], jobs: int) -> Iterator[tuple[Job, list[Row] | MeasurementError]]:
    """Each point with its rows, or why it has none, as soon as it is measured."""
    for timed, together in ((False, jobs), (True, 1)):
        stopped = Event()
        with ThreadPoolExecutor(together) as pool:
            begun = {pool.submit(measure, *job, stopped): job for job in left if job[0].timed == timed}
            try:
                for each in as_completed(begun):
                    try:
                        yield begun[each], each.result()
                    except MeasurementError as error:
                        yield begun[each], error
            finally:
                stopped.set()  # after Ctrl-C, say, what is being measured ends, and the rest does not begin
                pool.shutdown(cancel_futures=True)


def measure(experiment: Experiment, point: Point, stopped: Event) -> list[Row]:
    """The rows of a point, from a process of its own: nothing that was measured before is in its caches.

    The process is ended once `stopped` is set.
    """
    # One thread: points of a small machine are comparable, whatever else runs there.
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    command = [sys.executable, "-m", "sumwire.lab.experiments.point", experiment.name, json.dumps(dict(point))]
    # Ctrl-C in a terminal must not reach it as well: the second interrupt would break its cleanup.
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        while True:
            try:
                out, errors = process.communicate(timeout=_POLL)
                break
            except subprocess.TimeoutExpired:
                if stopped.is_set():
                    out, errors = _end(process)
                    break
    if process.returncode:
        last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise MeasurementError(last[0])
    rows: list[Row] = json.loads(out.splitlines()[-1])
    return rows


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=_CLEANUP)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()
