"""What we ask GPU owners to run works to its end, here by the interpreter on a tiny tensor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_it_prints_a_row_for_every_kernel() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--size", "64", "--block", "64", "--runs", "1", "--workers", "2"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert len(rows) == len(set(rows)) == 16
    assert "have the host's bits" in done.stdout
