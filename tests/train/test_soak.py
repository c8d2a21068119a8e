"""The soak test itself works: two runs of it."""

from __future__ import annotations

from pathlib import Path

from tests.train.soak import soak


def test_two_runs(tmp_path: Path) -> None:
    assert soak(2, 100.0, tmp_path, loads=0) == []
    assert list(tmp_path.iterdir()) == []
