"""Each backend and each instruction set that this CPU has, for the kernels of one family."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import pytest

LEVELS = ("reference", "portable", "avx2", "avx512")


@contextmanager
def backend_at(level: str, family: str) -> Iterator[ModuleType]:
    """reference.py of `sumwire.kernels.<family>`, or native.py at this instruction set; skips what this CPU lacks."""
    if level == "reference":
        yield import_module(f"sumwire.kernels.{family}.reference")
        return
    library = pytest.importorskip("sumwire.kernels.native", exc_type=OSError, reason="built without a compiler")
    best = library.level()
    try:
        if library.set_level(level) != level:
            pytest.skip(f"this CPU has no {level}")
        yield import_module(f"sumwire.kernels.{family}.native")
    finally:
        library.set_level(best)
