"""Native or reference: the one place that decides, for every family of kernels.

The native kernels are used where libsumwire loads. SUMWIRE_KERNELS=native or =reference chooses explicitly.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Literal, ParamSpec, TypeVar

from sumwire.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)


@cache
def name() -> Literal["native", "reference"]:
    """The backend in use; decided at the first call."""
    wanted = os.environ.get("SUMWIRE_KERNELS", "auto")
    if wanted not in ("auto", "native", "reference"):
        raise ConfigError(f"SUMWIRE_KERNELS={wanted!r} is not one of auto, native, reference")
    if wanted == "reference":
        return "reference"
    try:
        import_module("sumwire.kernels.native")
    except OSError as error:
        if wanted == "native":
            raise
        _log.warning(
            "native kernels are not available (%s): using the NumPy reference, which returns the same bytes "
            "but is some hundred times slower",
            error,
        )
        return "reference"
    return "native"


def describe() -> str:
    """The backend and its instruction set, as in "native (avx2)"."""
    if name() == "reference":
        return "reference"
    return f"native ({import_module('sumwire.kernels.native').level()})"


def dispatch(reference: Callable[P, R]) -> Callable[P, R]:
    """The kernel that `reference` defines, on the backend in use.

    The native implementation has the same name, in native.py of the same folder. It is imported when it is first
    needed, because that loads the library.
    """

    found: dict[str, Callable[P, R]] = {"reference": reference}

    @wraps(reference)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = name()
        if chosen not in found:
            family = reference.__module__.rpartition(".")[0]
            found[chosen] = getattr(import_module(f"{family}.native"), reference.__name__)
        return found[chosen](*args, **kwargs)

    return kernel
