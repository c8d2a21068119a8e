"""examples/train_sites.py as its first lines say to run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LINE = re.compile(r"site (\d) step (\d+) loss ([\d.]+) outer state ([0-9a-f]{8})")


def test_sites_on_one_machine_end_with_the_same_state() -> None:
    command = [sys.executable, "examples/train_sites.py", "--sites", "2", "--steps", "9", "--every", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    states: dict[int, set[str]] = {}
    for _, step, _, state in LINE.findall(done.stdout):
        states.setdefault(int(step), set()).add(state)
    assert max(states) >= 9
    assert all(len(each) == 1 for each in states.values()), done.stdout
    assert "a round takes" in done.stdout
