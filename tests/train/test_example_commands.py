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
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.train.test_examples import ENVIRONMENT, ROOT, TORCHRUN

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def documented(example: str) -> str:
    """The command in the docstring."""
    text = ast.get_docstring(ast.parse((ROOT / "examples" / example).read_text())) or ""
    (found,) = re.findall(r"^ *((?:torchrun|accelerate|python) .*)", text, flags=re.M)
    return str(found)


def launched(example: str, script: Path) -> str:
    """What the documented command of Accelerate prints, with this script instead of the example."""
    program, *arguments = shlex.split(documented(example))
    assert program == "accelerate"
    arguments[arguments.index(f"examples/{example}")] = str(script)
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.accelerate_cli", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
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


def test_accelerate_starts_two_processes(tmp_path: Path) -> None:
    """As torchrun would: test_frameworks.py trains the example so. Here a script that imports nothing stands for it."""
    pytest.importorskip("accelerate")
    script = tmp_path / "script.py"
    # In one write: where output is not buffered, print makes several, which those of the other process may separate.
    script.write_text(
        "import os\nwords = [os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')]\n"
        "os.write(1, (' '.join(words) + '\\n').encode())\n"
    )
    assert sorted(launched("train_accelerate.py", script).splitlines()) == ["0 0 2", "1 1 2"]


def test_accelerate_says_that_it_runs_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setattr(accelerate, "Accelerator", lambda cpu: SimpleNamespace(num_processes=1))
    monkeypatch.setattr(sys, "argv", ["train_accelerate.py"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "examples" / "train_accelerate.py"), run_name="__main__")
    assert "the only process" in capsys.readouterr().err


def test_kmeans_starts_a_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: on workers of their own, which must import everything, tests/estimators runs it."""
    deploy = pytest.importorskip("distributed.deploy")
    monkeypatch.setattr(deploy, "LocalCluster", partial(deploy.LocalCluster, processes=False))
    program, script, *_ = shlex.split(documented("kmeans_dask.py"))
    assert program == "python"
    monkeypatch.setattr(sys, "argv", [script, "--rows", "4000", "--chunks", "4"])
    runpy.run_path(str(ROOT / script), run_name="__main__")
    exact, coded, sizes = capsys.readouterr().out.splitlines()
    assert exact.startswith("float64: inertia ")
    assert re.fullmatch(r"4 bits: inertia .*, 4\.\d+ bits per value", coded)
    assert sum(map(int, sizes.removeprefix("rows per cluster:").split())) == 4000
