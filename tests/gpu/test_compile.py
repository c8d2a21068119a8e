"""Kernels compile ahead of time for GPUs that are not here: no spills, no inexact instructions."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compiler(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that compiles, beside this one, which may interpret."""
    if find_spec("triton") is None:
        pytest.skip('Triton is not installed: pip install ".[gpu]"')
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("a step of its own: make test-gpu-kernels")
    return {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}


def run(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SOME = """
import sumwire
from benchmarks.gpu_calls import Workload
from benchmarks.gpu_compile import TARGETS, compiled, launches
for case in Workload(sumwire.Lattice(4), 1600, "cpu").lattice_cases():
    for launch in launches(case.call):
        if case.name in ("measure", "encode, residual", "decode narrow") and not launch.constants["TAIL"]:
            for target in ("sm_90", "gfx942"):
                made = compiled(launch, TARGETS[target])
                assert not made.spilled and not made.inexact, (case.name, target, made)
                print(case.name, target, made.registers)
"""


LARGE = """
import sumwire
from benchmarks.gpu_calls import Workload
from benchmarks.gpu_compile import TARGETS, compiled, distinct
chosen = ("spread_kernel", "quantize_kernel", "mean_kernel")
made = set()
for launch in distinct(Workload(sumwire.Lattice(4, block=4096), 4096, "cpu").lattice_cases()):
    name = launch.kernel.__name__
    if name in chosen and launch.constants.get("RESIDUAL", True):
        for target in ("sm_80", "sm_90", "sm_100", "gfx942"):
            found = compiled(launch, TARGETS[target])
            assert not found.spilled and not found.inexact, (name, target, found)
            made.add((name, target))
print(len(made))
"""


def test_kernels_of_large_blocks_compile_without_spills(compiler: dict[str, str]) -> None:
    assert int(run(LARGE, compiler)) == 12


def test_the_largest_kernels_compile_without_spills(compiler: dict[str, str]) -> None:
    """`python -m benchmarks.gpu_compile` does so for all of them."""
    assert len(run(SOME, compiler).splitlines()) == 6


CONTRACTED = """
import sys
sys.argv = ["gpu_compile"]
import sumwire
from dataclasses import replace
from benchmarks.gpu_calls import Workload
from benchmarks.gpu_compile import TARGETS, compiled, launches
case = next(c for c in Workload(sumwire.Lattice(4), 600, "cpu").lattice_cases() if c.name == "encode, residual")
launch = launches(case.call)[0]
print(compiled(replace(launch, options=launch.options | {"enable_fp_fusion": True}), TARGETS["sm_90"]).inexact)
"""


def test_contraction_would_be_seen(compiler: dict[str, str]) -> None:
    assert "fma.rn.f" in run(CONTRACTED, compiler)
