import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import sumwire
from sumwire.cli import main, serve
from sumwire.cli.serve import COMMAND_DEFAULTS
from sumwire.kernels import backend
from sumwire.lab import codecs


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of codecs on the first few thousand coordinates."""
    whole: Callable[..., list[NDArray[np.float32]]] = codecs.worker_gradients
    monkeypatch.setattr(codecs, "worker_gradients", lambda *args, **kw: [x[:4096] for x in whole(*args, **kw)])
    monkeypatch.setattr(codecs, "SPEED_BYTES", 1 << 14)
    monkeypatch.setattr(codecs, "CURVE_BITS", (1, 3))
    monkeypatch.setattr(codecs, "ROUNDS", 1)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(("group", "commands"), [((), ("demo", "info", "lab")), (("lab",), ("codecs", "densities"))])
def test_help_lists_the_commands(group: tuple[str, ...], commands: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*group, "--help"])
    assert result.exit_code == 0
    for command in commands:
        assert command in result.output


def test_version() -> None:
    assert sumwire.__version__ in CliRunner().invoke(main, ["--version"]).output


def test_info_names_version_kernels_and_threads() -> None:
    result = CliRunner().invoke(main, ["info"])
    assert result.exit_code == 0
    for fact in (sumwire.__version__, backend.name(), str(sumwire.get_num_threads())):
        assert fact in result.output


def test_densities_of_a_workload() -> None:
    result = CliRunner().invoke(main, ["lab", "densities", "--workload", "ncf-small", "--steps", "1", "--batch", "4"])
    assert result.exit_code == 0, result.output
    for word in ("embedding", "of 16", "%"):
        assert word in result.output
    wrong = CliRunner().invoke(main, ["lab", "densities", "--workload", "missing"])
    assert wrong.exit_code == 2
    assert "lstm" in wrong.output


DEMO = ("--rate", "--workers", "--bits", "--methods", "--workload", "--seed", "--steps", "--target", "--figure")
CODECS = ("--workload", "--workers", "--bits", "--seed", "--steps", "--figure")


@pytest.mark.parametrize(
    ("command", "options", "defaults"),
    [
        (("demo",), DEMO, ("100Mbit", "fp32,fp16,powersgd-1,sumwire", "demo.svg")),
        (("lab", "codecs"), CODECS, ("mlp", "codecs.svg")),
    ],
)
def test_help_shows_options_and_defaults(
    command: tuple[str, ...], options: tuple[str, ...], defaults: tuple[str, ...]
) -> None:
    output = CliRunner().invoke(main, [*command, "--help"]).output
    for text in (*options, *defaults):
        assert text in output


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("demo", "--rate", "100"),
        ("demo", "--rate", "fast"),
        ("demo", "--workers", "1"),
        ("demo", "--workers", "65"),
        ("demo", "--bits", "0"),
        ("demo", "--bits", "9"),
        ("demo", "--methods", "fp32,bf8"),
        ("demo", "--methods", "fp32,fp32"),
        ("demo", "--workload", "vgg"),
        ("demo", "--seed", "-1"),
        ("demo", "--steps", "0"),
        ("demo", "--target", "97"),
        ("demo", "--target", "high"),
        ("lab codecs", "--bits", "0"),
        ("lab codecs", "--bits", "9"),
        ("lab codecs", "--workers", "0"),
        ("lab codecs", "--workload", "vgg"),
        ("lab codecs", "--seed", "-1"),
        ("lab codecs", "--steps", "-1"),
    ],
)
def test_bad_values_exit_2_and_name_the_option(command: str, option: str, value: str) -> None:
    result = CliRunner().invoke(main, [*command.split(), option, value])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output


@pytest.mark.usefixtures("small")
def test_codecs_prints_the_rows_and_draws(tmp_path: Path) -> None:
    figure = tmp_path / "out.svg"
    options = ["--steps", "1", "--workers", "2", "--bits", "3", "--figure", str(figure)]
    result = CliRunner().invoke(main, ["lab", "codecs", *options])
    assert result.exit_code == 0, result.output
    for text in ("Sumwire, 3-bit", "THC recipe, 3-bit", "uniform, 3-bit", "fp16", "less error", "out.svg"):
        assert text in result.output
    assert figure.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("demo --figure nowhere/demo.svg", "no directory 'nowhere'"),
        ("demo --figure demo.txt", "ends in .svg"),
        ("lab codecs --figure nowhere/codecs.svg", "no directory 'nowhere'"),
        ("lab codecs --figure codecs.txt", "ends in .svg"),
        ("lab codecs --workers 1000", "lower workers"),
    ],
)
def test_errors_are_one_line_and_exit_1(
    command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, command.split())
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
    hint = 'pip install ".[cli]" in the source tree of Sumwire'
    assert result.stderr == f"sumwire: the command line needs click: {hint}\n"


@pytest.mark.parametrize(
    ("command", "blocked"),
    [
        ("demo", "rich.console"),
        ("demo", "torch"),
        ("demo", "sklearn.datasets"),
        ("demo", "matplotlib"),
        ("lab codecs", "rich.console"),
        ("lab codecs", "torch"),
        ("lab codecs", "sklearn.datasets"),
        ("lab codecs", "matplotlib"),
    ],
)
def test_a_missing_package_is_one_line_and_exit_2(command: str, blocked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("sumwire.lab.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, blocked, None)
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 2
    name, package = command.split()[-1], blocked.partition(".")[0]
    assert result.stderr == f'Error: {name} needs {package}: pip install ".[lab]" in the source tree of Sumwire\n'


def test_serve_has_the_defaults_of_the_server() -> None:
    context = click.Context(serve)
    given = {parameter.name: parameter.get_default(context) for parameter in serve.params}
    given |= {name: given[name] << 20 for name in ("memory", "max_frame")}
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(sumwire.Server).parameters.items()
        if parameter.default is not parameter.empty and name not in ("tls", "upstream_tls")
    }
    assert {name: given[name] for name in defaults} == defaults | {"port": 4650, "log_level": "info"}
    assert COMMAND_DEFAULTS == {"port": 4650, "log_level": "info"}
