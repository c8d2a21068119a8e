"""Benchmarks of the server run to their end, on small tensors: what they measure is not looked at."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "arguments",
    [
        "cpu --size 20000 --runs 1",
        "latency --workers 3 --rounds 4 --processes 2 --size 100",
        pytest.param(
            "throughput --size 20000 --rounds 2 --runs 1 --seconds 1",
            marks=pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed"),
        ),
    ],
)
def test_server(arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.server", *arguments.split()],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| " in done.stdout
