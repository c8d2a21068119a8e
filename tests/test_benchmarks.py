"""Benchmarks that take long run to their end, on small tensors: what they measure is not looked at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_make_runs_every_command_that_the_docs_publish_figures_of() -> None:
    rules = (ROOT / "Makefile").read_text()
    rules = re.sub(r"\$\((ONE|BENCH)\)", "python -m", rules).replace("$(BIN)/", "")
    made = {line.strip() for line in rules.splitlines() if line.startswith("\t")}
    published = []
    for page in (ROOT / "docs").glob("*.md"):
        found = re.findall(r"`(?:OMP_NUM_THREADS=1 )?((?:python -m benchmarks|sumwire lab)[^`]*)`", page.read_text())
        published += [(page.name, command) for command in found]
    assert len(published) > 15
    for page, command in published:
        # Prose may name a command without its options; a page that publishes its figures gives them.
        known = command in made or (page != "benchmarks.md" and any(line.startswith(command) for line in made))
        assert known, f"{page} has figures of {command!r}, which neither make bench nor bench-training runs"


@pytest.mark.parametrize(
    "arguments",
    [
        "benchmarks.sparse_scale --size 2000 --runs 1 --workers 3 70",
        "benchmarks.server cpu --size 20000 --runs 1",
        "benchmarks.server latency --workers 3 --rounds 4 --processes 2 --size 100",
        pytest.param(
            "benchmarks.server throughput --size 20000 --rounds 2 --runs 1 --seconds 1",
            marks=pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed"),
        ),
    ],
)
def test_runs_to_its_end(arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments.split()],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| " in done.stdout
