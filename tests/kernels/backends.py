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
    """`sumwire.kernels.<family>_reference`, or `_native` at this instruction set; skips what there is not."""
    if level == "reference":
        yield import_module(f"sumwire.kernels.{family}_reference")
        return
    native = pytest.importorskip("sumwire.kernels.lattice.native", exc_type=OSError, reason="built without a compiler")
    best = native.level()
    try:
        if native.set_level(level) != level:
            pytest.skip(f"this CPU has no {level}")
        yield import_module(f"sumwire.kernels.{family}_native")
    finally:
        native.set_level(best)
