"""Which kernels run: native where it loads, else the reference with one warning, never a crash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import sumwire
from sumwire.kernels import backend

SCRIPT = """
import logging
logging.basicConfig(format="%(levelname)s %(message)s")
import numpy as np, sumwire
from sumwire.kernels import backend
xs = [np.arange(1000, dtype=np.float32)] * 2
for _ in range(2):
    sumwire.average(sumwire.Lattice(2, 4, seed=3), xs)
import zlib
print(backend.name(), zlib.crc32(sumwire.average(sumwire.Lattice(2, 4, seed=3), xs).tobytes()))
"""


def run(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "SUMWIRE_KERNELS"}
    env |= {"PYTHONPATH": str(path)} | environment
    return subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, check=False)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the installed package."""
    shutil.copytree(Path(sumwire.__file__).parent, tmp_path / "sumwire")
    return tmp_path


def test_without_the_library_one_warning_and_the_same_bytes(package: Path) -> None:
    for library in (package / "sumwire" / "kernels").glob("libsumwire.*"):
        library.unlink()
    bare = run(package)
    assert bare.returncode == 0, bare.stderr
    assert bare.stdout.startswith("reference ")
    assert bare.stderr.count("native kernels are not available") == 1
    whole = run(Path(sumwire.__file__).parent.parent)
    assert whole.stdout.split()[1] == bare.stdout.split()[1]


def test_a_library_that_does_not_load_is_no_crash(package: Path) -> None:
    (package / "sumwire" / "kernels" / "libsumwire.so").write_bytes(b"not a library")
    broken = run(package)
    assert broken.returncode == 0
    assert broken.stdout.startswith("reference ")
    assert broken.stderr.count("native kernels are not available") == 1
    assert run(package, SUMWIRE_KERNELS="native").returncode != 0


def test_the_environment_decides(package: Path) -> None:
    forced = run(package, SUMWIRE_KERNELS="reference")
    assert forced.stdout.startswith("reference ")
    assert forced.stderr == ""
    unknown = run(package, SUMWIRE_KERNELS="gpu")
    assert unknown.returncode != 0
    assert "auto, native, reference, triton" in unknown.stderr


def test_importing_the_package_needs_only_numpy() -> None:
    code = "import sys, sumwire; print([m for m in ('torch', 'click', 'rich', 'sklearn') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("family", ["lattice", "scalar", "sketch", "sparse", "hashing"])
def test_every_dispatched_kernel_has_a_native_implementation(family: str) -> None:
    pytest.importorskip("sumwire.kernels.native", exc_type=OSError, reason="built without a compiler")
    front = import_module(f"sumwire.kernels.{family}")
    native = import_module(f"{front.__spec__.parent}.native")  # type: ignore[union-attr]
    kernels = [value.__name__ for value in vars(front).values() if hasattr(value, "__wrapped__")]
    assert kernels
    assert [name for name in kernels if not hasattr(native, name)] == []


def test_tensors_on_a_gpu_are_taken_where_triton_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes(place: str, wanted: str, installed: bool) -> bool:
        backend._wanted.cache_clear()
        backend._has_triton.cache_clear()
        monkeypatch.setenv("SUMWIRE_KERNELS", wanted)
        monkeypatch.setattr(backend, "find_spec", lambda name: object() if installed else None)
        return backend.takes(SimpleNamespace(device=SimpleNamespace(type=place)))

    try:
        assert takes("cuda", "auto", installed=True)
        assert not takes("cuda", "auto", installed=False)
        assert not takes("cuda", "native", installed=True)
        assert not takes("cpu", "auto", installed=True)
        assert takes("cpu", "triton", installed=True)
        assert not takes("mps", "triton", installed=True)
    finally:
        monkeypatch.undo()
        backend._wanted.cache_clear()
        backend._has_triton.cache_clear()


def test_arrays_of_the_host_import_neither_torch_nor_triton() -> None:
    script = SCRIPT + "import sys; print(sorted({'torch', 'triton', 'sumwire.kernels.triton'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
