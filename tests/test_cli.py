import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import sumwire
from sumwire import kernels
from sumwire.cli import main
from sumwire.lab import demo


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo on the first few thousand coordinates."""
    whole: Callable[..., list[NDArray[np.float32]]] = demo.worker_gradients
    monkeypatch.setattr(demo, "worker_gradients", lambda *args, **kw: [x[:4096] for x in whole(*args, **kw)])
    monkeypatch.setattr(demo, "SPEED_BYTES", 1 << 14)
    monkeypatch.setattr(demo, "CURVE_BITS", (1, 3))
    monkeypatch.setattr(demo, "ROUNDS", 1)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_the_commands() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output
    assert "info" in result.output


def test_version() -> None:
    assert sumwire.__version__ in CliRunner().invoke(main, ["--version"]).output


def test_info_names_version_kernels_and_threads() -> None:
    result = CliRunner().invoke(main, ["info"])
    assert result.exit_code == 0
    for fact in (sumwire.__version__, kernels.backend().NAME, str(sumwire.get_threads())):
        assert fact in result.output


def test_demo_help_shows_defaults() -> None:
    output = CliRunner().invoke(main, ["demo", "--help"]).output
    for option in ("--workload", "--workers", "--bits", "--seed", "--steps", "--figure"):
        assert option in output
    assert "demo.svg" in output


@pytest.mark.parametrize(
    "options",
    [("--bits", "0"), ("--bits", "9"), ("--workers", "0"), ("--workload", "vgg"), ("--seed", "-1"), ("--steps", "-1")],
)
def test_bad_values_exit_2_and_name_the_option(options: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, ["demo", *options])
    assert result.exit_code == 2
    assert options[0] in result.output


@pytest.mark.usefixtures("small")
def test_demo_prints_the_rows_and_draws(tmp_path: Path) -> None:
    figure = tmp_path / "out.svg"
    result = CliRunner().invoke(
        main, ["demo", "--steps", "1", "--workers", "2", "--bits", "3", "--figure", str(figure)]
    )
    assert result.exit_code == 0, result.output
    for text in ("Sumwire, 3-bit", "THC recipe, 3-bit", "uniform, 3-bit", "fp16", "less error", "out.svg"):
        assert text in result.output
    assert figure.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--figure", "nowhere/demo.svg"), "no directory 'nowhere'"),
        (("--figure", "demo.txt"), "ends in .svg"),
        (("--workers", "1000", "--figure", "demo.svg"), "lower workers"),
    ],
)
def test_errors_are_one_line_and_exit_1(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["demo", *options])
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_python_m_sumwire() -> None:
    result = python("-m", "sumwire", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: sumwire [OPTIONS] COMMAND")


def test_without_click_the_command_says_what_to_install() -> None:
    result = python("-c", "import sys; sys.modules['click'] = None; import sumwire.cli")
    assert result.returncode == 2
    assert result.stderr == 'sumwire: the command line needs click: pip install "sumwire[lab]"\n'


@pytest.mark.parametrize(
    ("blocked", "importer"),
    [
        ("rich.console", "sumwire.lab.demo"),
        ("torch", "sumwire.lab.demo"),
        ("sklearn.datasets", "sumwire.lab.gradients"),
        ("matplotlib", "sumwire.lab.figures"),
    ],
)
def test_a_missing_package_is_one_line_and_exit_2(blocked: str, importer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in {"sumwire.lab.demo", importer}:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, blocked, None)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 2
    package = blocked.partition(".")[0]
    assert result.stderr == f'Error: demo needs {package}: pip install "sumwire[lab]"\n'
