"""Experiments from the command line: run, resumed, shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Lock
from typing import Any

import pytest
from click.testing import CliRunner

from sumwire.cli import main
from sumwire.lab.experiments import NAMES, chart, find
from sumwire.lab.experiments.base import Experiment
from sumwire.lab.experiments.results import Results
from tests.aggregate.server import browser

POINT = {"workers": 4, "correlation": 0.0, "seed": 0}
CHROMIUM = browser.find()


def call(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["lab", *arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one point, measured in a process of its own."""
    path = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sumwire.lab.experiments.run.find", lambda name: replace(find(name), quick=[POINT]))
        result = call("run", "hops", "--results", str(path))
    assert result.exit_code == 0, result.output
    assert "decompressed at every hop" in result.output
    return path


def test_every_experiment_is_listed_and_declares_what_it_needs() -> None:
    listed = call("list").output
    for name in NAMES:
        found = find(name)
        assert f"{name} " in listed
        assert found.question in listed
        assert len(found.quick) < len(found.full)
        assert len({json.dumps(dict(point), sort_keys=True) for point in found.full}) == len(found.full)


def test_a_run_measures_only_what_is_missing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(folder, "hops")
    assert len(results.lines()) == 4
    measured: list[Any] = []

    def measure(experiment: Experiment, point: Any, stopped: Event) -> list[dict[str, Any]]:
        measured.append(point)
        return [{"method": "a", "nmse": 1.0}]

    other = POINT | {"seed": 1}
    monkeypatch.setattr("sumwire.lab.experiments.run.measure", measure)
    monkeypatch.setattr("sumwire.lab.experiments.run.find", lambda name: replace(find(name), quick=[POINT, other]))
    copy = tmp_path / "hops.jsonl"
    copy.write_bytes(results.path.read_bytes())
    assert call("run", "hops", "--results", str(tmp_path)).exit_code == 0
    assert measured == [other]
    assert call("run", "hops", "--results", str(tmp_path), "--again", "--jobs", "1").exit_code == 0
    assert measured == [other, POINT, other]


@pytest.mark.parametrize(("timed", "most"), [(False, 3), (True, 1)])
def test_points_are_measured_together_unless_times_are_measured(
    timed: bool, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, running, seen = Lock(), 0, 0
    together = Barrier(most)

    def measure(experiment: Experiment, point: Any, stopped: Event) -> list[dict[str, Any]]:
        nonlocal running, seen
        with lock:
            running += 1
            seen = max(seen, running)
        together.wait(60)
        with lock:
            running -= 1
        return [{"method": "a", "nmse": 1.0}]

    points = [POINT | {"seed": seed} for seed in range(3)]
    monkeypatch.setattr("sumwire.lab.experiments.run.measure", measure)
    monkeypatch.setattr("sumwire.lab.experiments.run.find", lambda name: replace(find(name), quick=points, timed=timed))
    assert call("run", "hops", "--results", str(tmp_path), "--jobs", "3").exit_code == 0
    assert seen == most
    assert [line["seed"] for line in sorted(Results(tmp_path, "hops").lines(), key=lambda line: line["seed"])] == [
        0,
        1,
        2,
    ]


def test_an_interrupted_run_ends_what_it_measures_and_keeps_what_it_has(tmp_path: Path) -> None:
    """The first point is quick; the second one would take minutes, and is interrupted by Ctrl-C."""
    started = tmp_path / "started"
    script = f"""
import signal
from dataclasses import replace
from pathlib import Path
from sumwire.cli import main
from sumwire.lab.experiments import find, run

slow = {POINT | {"workers": 1 << 14}!r}
popen = run.subprocess.Popen

def begun(command, **options):
    process = popen(command, **options)
    if command[-1] == run.json.dumps(slow):
        Path({str(started)!r}).write_text(str(process.pid))
    return process

# Processes of a shell's background jobs ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
run.subprocess.Popen = begun
run.find = lambda name: replace(find(name), quick=[{POINT!r}, slow])
main(["lab", "run", "hops", "--jobs", "1", "--results", {str(tmp_path)!r}])
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while not (started.exists() and started.read_text() and Results(tmp_path, "hops").lines()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert [line["point"] for line in Results(tmp_path, "hops").lines()] == [POINT] * 4


def test_a_point_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = POINT | {"workers": 0}
    monkeypatch.setattr("sumwire.lab.experiments.run.find", lambda name: replace(find(name), quick=[wrong, POINT]))
    result = call("run", "hops", "--results", str(tmp_path))
    assert result.exit_code == 1
    assert "1 points failed" in result.output
    assert '"workers": 0' in " ".join(result.output.split())
    assert [line["point"] for line in Results(tmp_path, "hops").lines()] == [POINT] * 4


def test_adding_compressed_beats_recompression(folder: Path) -> None:
    errors = {line["method"]: line["nmse"] for line in Results(folder, "hops").lines()}
    exact, narrow, server, ring = errors.values()
    assert exact < narrow < server < ring


def test_curves_join_rows_at_the_same_place() -> None:
    lines = [
        {"workers": n, "method": "a", "nmse": error, "correlation": 0.5} for n, error in ((2, 1.0), (2, 3.0), (1, 5.0))
    ]
    found = chart.panels(find("hops"), lines)
    assert found == {"correlation: 0.5": {"a": [(1.0, 5.0, 5.0, 5.0), (2.0, 2.0, 1.0, 3.0)]}}


def test_a_report_has_all_results_and_needs_no_network(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = call("report", "--results", str(folder), "--out", str(page), "--figures", str(tmp_path))
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert text.count("<tr>") == 5
    assert (tmp_path / "lab-hops.svg").read_text().count("<svg") == 1
    if CHROMIUM is None:
        return
    with browser.Browser(CHROMIUM) as tab:
        tab.ask("Page.navigate", url=page.as_uri())
        tab.until("document.querySelectorAll('figure svg polyline').length === 4")
        tab.evaluate("document.querySelector('.legend button').click()")
        assert tab.evaluate("document.querySelectorAll('figure svg polyline').length") == 3
        tab.evaluate(
            "(s => { const b = s.getBoundingClientRect(); s.dispatchEvent(new PointerEvent('pointermove',"
            " { clientX: b.left + b.width / 2, clientY: b.top + b.height / 2 })); })(document.querySelector('svg'))"
        )
        assert "at 4" in tab.evaluate("document.querySelector('.tip').textContent")
        tab.resize(390, 800, phone=True)
        assert tab.evaluate("document.documentElement.scrollWidth <= 390")
        assert tab.errors == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nothing"), "no experiment 'nothing': choose from"),
        (("report", "--results", "missing"), "no results in missing: measure first"),
        (("run",), "Missing argument"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], said: str) -> None:
    result = call(*arguments)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
