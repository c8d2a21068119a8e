"""Native, reference or Triton: the one place that decides, for every family of kernels.

Arrays of the host go to the native kernels where libsumwire loads; SUMWIRE_KERNELS=native or =reference chooses
explicitly. Torch tensors go to the Triton kernels: those on a GPU, where triton is installed, if `takes` says so.
SUMWIRE_KERNELS=triton sends torch tensors of the CPU there too, which with TRITON_INTERPRET=1 is how they are tested.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, ParamSpec, TypeVar

from sumwire.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)


@cache
def name() -> Literal["native", "reference"]:
    """The backend of arrays in the host's memory; decided at the first call."""
    wanted = _wanted()
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


@cache
def _wanted() -> str:
    wanted = os.environ.get("SUMWIRE_KERNELS", "auto")
    if wanted not in ("auto", "native", "reference", "triton"):
        raise ConfigError(f"SUMWIRE_KERNELS={wanted!r} is not one of auto, native, reference, triton")
    return wanted


@cache
def _has_triton() -> bool:
    """Whether Triton may be used for tensors on a GPU. Looks, but imports nothing."""
    return _wanted() in ("auto", "triton") and find_spec("triton") is not None


def takes(tensor: Any) -> bool:
    """Whether kernels read this torch tensor where it lies."""
    place = tensor.device.type
    return _has_triton() if place == "cuda" else place == "cpu" and _wanted() == "triton"


def describe() -> str:
    """The backend and its instruction set, as in "native (avx2)"."""
    if name() == "reference":
        return "reference"
    return f"native ({import_module('sumwire.kernels.native').level()})"


def dispatch(reference: Callable[P, R]) -> Callable[P, R]:
    """The kernel that `reference` defines, on the backend in use: Triton's if an argument is a torch tensor.

    The native implementation has the same name, in native.py of the same folder; Triton's, in the file of
    kernels/triton that is named like the folder. Either is imported when it is first needed.
    """

    found: dict[str, Callable[P, R]] = {"reference": reference}

    @wraps(reference)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = "triton" if any(hasattr(arg, "data_ptr") for arg in args) else name()
        if chosen not in found:
            family = reference.__module__.rpartition(".")[0]
            place = f"{family}.native" if chosen == "native" else family.replace("kernels.", "kernels.triton.")
            found[chosen] = getattr(import_module(place), reference.__name__)
        return found[chosen](*args, **kwargs)

    return kernel
