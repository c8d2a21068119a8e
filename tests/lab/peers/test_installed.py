"""Packages that are found at run time: measured by their own code where they are installed, and named where not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire.lab.experiments import find
from sumwire.lab.experiments.chart import panels
from sumwire.lab.experiments.table import cells
from sumwire.lab.peers.installed import PACKAGES, Average, Package, Received

Floats = NDArray[np.float32]

HIVEMIND = pytest.mark.skipif(find_spec("hivemind") is None, reason="hivemind is not installed")
TORCHFT = pytest.mark.skipif(
    find_spec("torchft") is None or find_spec("triton") is None, reason="torchft or triton is not installed"
)


@pytest.fixture
def xs() -> list[Floats]:
    rng = np.random.default_rng(0)
    common = rng.standard_normal(1300, np.float32)
    return [common + rng.standard_normal(1300, np.float32) for _ in range(3)]


def error(mean: Floats, xs: Sequence[Floats]) -> float:
    exact = np.mean(xs, axis=0, dtype=np.float64)
    return float(np.square(mean - exact).sum() / np.square(exact).sum())


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PACKAGES.values():
        monkeypatch.setitem(sys.modules, package.module, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("nothing_installed")
def test_packages_that_are_not_installed_are_named_as_absent(xs: list[Floats]) -> None:
    for package in PACKAGES.values():
        assert not package.installed
        ((scheme, note),) = package.averages(xs)
        assert scheme == ""
        assert note == f"absent: not installed (pip install {package.distributions[0]})"


@pytest.mark.usefixtures("nothing_installed")
def test_the_table_shows_what_is_absent_and_the_chart_leaves_it_out() -> None:
    experiment = find("installed")
    point = dict(experiment.quick[0]) | {"part": 0.0}
    found = [point | row for row in experiment.measure(point)]
    assert [row["package"] for row in found] == ["Sumwire", "Sumwire", *PACKAGES]
    *_, note = zip(*cells(experiment, found), strict=True)
    assert note[:2] == ("", "")
    assert all(text.startswith("absent: not installed") for text in note[2:])
    assert {name for curves in panels(experiment, found).values() for name in curves} == {
        "Lattice(total_bits=12)",
        "Lattice(total_bits=16)",
    }


def test_a_package_that_cannot_be_measured_says_why(
    xs: list[Floats], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty packages: what matters is that they are found."""
    if "deepspeed" in sys.modules or "hivemind" in sys.modules:
        pytest.skip("already imported")
    for name in ("deepspeed", "hivemind"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sumwire.lab.peers.from_hivemind", raising=False)
    ((_, note),) = PACKAGES["DeepSpeed"].averages(xs)
    assert isinstance(note, str)
    assert note.startswith("not measured: its quantized reductions are CUDA kernels")
    ((_, note),) = PACKAGES["hivemind"].averages(xs)
    assert note == "not measured: ModuleNotFoundError: No module named 'hivemind.averaging'"
    sys.modules.pop("hivemind")


def schemes() -> Mapping[str, Average]:
    """As an adapter has it; this module is one."""

    def fails(xs: Sequence[Floats]) -> Received:
        raise ValueError("of two lines:\nthe second")

    return {"works": lambda xs: Received([xs[0]], 32.0, 32.0), "fails": fails}


def test_a_scheme_that_fails_does_not_keep_others_from_being_measured(xs: list[Floats]) -> None:
    (first, found), (second, note) = Package("numpy", ("numpy",), adapter=__name__).averages(xs)
    assert (first, second) == ("works", "fails")
    assert isinstance(found, Received)
    assert note == "not measured: ValueError: of two lines:"


def test_versions_are_those_of_the_distribution_that_is_there() -> None:
    assert Package("numpy", ("no-such-distribution", "numpy")).version == np.__version__
    assert Package("numpy", ("no-such-distribution",)).version == ""


def test_no_package_is_imported_before_it_is_measured() -> None:
    names = [package.module for package in PACKAGES.values()]
    program = f"import sys, sumwire.lab.experiments.installed; assert not {{*{names}}} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", program], check=True)


@HIVEMIND
@pytest.mark.filterwarnings("ignore")  # hivemind uses what torch and NumPy have deprecated
def test_hivemind_averages_by_its_own_compression(xs: list[Floats]) -> None:
    found = dict(PACKAGES["hivemind"].averages(xs))
    half = found["FLOAT16"]
    assert isinstance(half, Received)
    assert len(half.means) == len(xs)
    assert all(0 < error(mean, xs) < 1e-6 for mean in half.means)
    assert half.up_bits == pytest.approx(16, abs=0.5)
    assert half.down_bits == pytest.approx(half.up_bits)
    assert PACKAGES["hivemind"].version
    for name in ("UNIFORM_8BIT", "QUANTILE_8BIT", "BLOCKWISE_8BIT"):
        eight = found[name]
        if isinstance(eight, str):  # with versions of NumPy that it does not know, or without bitsandbytes
            assert eight.startswith("not measured: ")
        else:
            assert max(error(mean, xs) for mean in eight.means) < 0.02


@TORCHFT
def test_torchft_averages_by_its_own_kernels(xs: list[Floats]) -> None:
    ((name, found),) = PACKAGES["torchft"].averages(xs)
    assert name.startswith("allreduce_quantized, ")
    assert isinstance(found, Received), found
    (mean,) = found.means
    assert mean.shape == xs[0].shape
    assert 0 < error(mean, xs) < 2e-3
    # Three rows of 512 with four bytes of scale for each.
    assert found.up_bits == found.down_bits == 8 * 3 * 516 / 1300


@TORCHFT
def test_a_failure_of_its_process_is_told(xs: list[Floats], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr("sumwire.lab.peers.from_torchft.__name__", "sumwire.lab.peers.no_such_module", raising=False)
    ((_, note),) = PACKAGES["torchft"].averages(xs)
    assert isinstance(note, str)
    assert "No module named" in note
