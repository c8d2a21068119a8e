"""The commands that the examples document: the same in the file and in the README, and they start what they say.

Those of torchrun are what `torchrun` of test_examples.py starts, for test_examples.py and test_frameworks.py.
"""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.train.test_examples import ENVIRONMENT, ROOT, TORCHRUN
from tests.train.test_frameworks import RUN

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def documented(example: str) -> str:
    """The command in the docstring."""
    text = ast.get_docstring(ast.parse((ROOT / "examples" / example).read_text())) or ""
    (found,) = re.findall(r"^ *((?:torchrun|accelerate|python) .*)", text, flags=re.M)
    return str(found)


def run(example: str, *smaller: str) -> str:
    """What the documented command prints; `smaller` are options that make it do less."""
    program, *arguments = shlex.split(documented(example))
    started = {"python": [], "accelerate": ["-m", "accelerate.commands.accelerate_cli"]}[program]
    done = subprocess.run(
        [sys.executable, *started, *arguments, *smaller],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_readme_has_the_command_of_the_docstring(path: Path) -> None:
    readme = (ROOT / "examples" / "README.md").read_text()
    assert f"| `{path.name}` | `{documented(path.name)}` |" in readme
    if documented(path.name).startswith("torchrun"):
        assert documented(path.name).startswith(f"torchrun {shlex.join(TORCHRUN)} ")


def test_accelerate_starts_two_processes() -> None:
    pytest.importorskip("accelerate")
    found = [match.groups() for match in RUN.finditer(run("train_accelerate.py", "--epochs", "1"))]
    assert sorted(rank for rank, *_ in found) == ["0", "1"]
    assert {steps for _, steps, *_ in found} == {"29"}
    assert len({weights for *_, weights in found}) == 1


def test_accelerate_says_that_it_runs_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setattr(accelerate, "Accelerator", lambda cpu: SimpleNamespace(num_processes=1))
    monkeypatch.setattr(sys, "argv", ["train_accelerate.py"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "examples" / "train_accelerate.py"), run_name="__main__")
    assert "the only process" in capsys.readouterr().err


def test_kmeans_on_dask() -> None:
    pytest.importorskip("distributed")
    exact, coded, sizes = run("kmeans_dask.py", "--rows", "4000").splitlines()
    assert exact.startswith("float64: inertia ")
    assert re.fullmatch(r"4 bits: inertia .*, 4\.\d+ bits per value", coded)
    assert sum(map(int, sizes.removeprefix("rows per cluster:").split())) == 4000
