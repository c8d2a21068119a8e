"""The compiled kernels: loads libsumwire, and helps native.py of every family to declare its functions.

Importing this module loads the library, and raises OSError where that fails. ctypes releases the GIL during each call.
Nothing here checks arguments: callers pass contiguous arrays of the right dtype (the codecs see to that).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import addressof, c_char, c_char_p, c_int32, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sumwire.kernels import hashing
from sumwire.kernels.arrays import AnyArray

P = ParamSpec("P")

R = TypeVar("R")

LEVELS = ("portable", "avx2", "avx512")

_ABI = 10

_KINDS = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2, np.dtype(np.float64): 3}


def _load() -> ctypes.CDLL:
    found = sorted(Path(__file__).parent.glob("libsumwire.*"))
    if not found:
        raise OSError("libsumwire is not beside this file: it was installed without a C++ compiler")
    library = ctypes.CDLL(str(found[0]))
    if not hasattr(library, "sw_abi") or library.sw_abi() != _ABI:
        raise OSError(f"{found[0].name} belongs to another release of Sumwire: reinstall the package")
    return library


_library = _load()


_Memory: Any = c_char * 0
"""Of any length: only its address counts."""


class Array:
    """An argument type: the address of an array's first element; None is a null pointer."""

    @staticmethod
    def from_param(array: AnyArray | None) -> Any:
        if array is None:
            return None
        # A quarter of the time that `array.ctypes` takes, and every call of a kernel has several of them.
        return _Memory.from_buffer(array) if array.flags.carray else c_void_p(array.ctypes.data)


def address(array: AnyArray) -> int:
    """Where an array lies, for structures that point to it."""
    return addressof(_Memory.from_buffer(array)) if array.flags.carray else array.ctypes.data


def kind(array: AnyArray) -> int:
    """The library's number for the array's dtype; bfloat16 comes as uint16."""
    return _KINDS[array.dtype]


def function(symbol: str, result: Any, *types: Any) -> Callable[..., Any]:
    """A function of the library, by its C signature."""
    found: Any = getattr(_library, symbol)
    found.argtypes, found.restype = types, result
    return found  # type: ignore[no-any-return]


def native(
    reference: Callable[P, R], call: Callable[..., Any], arguments: Callable[P, tuple[Any, ...]]
) -> Callable[P, R]:
    """The native implementation of `reference`, with its signature: `arguments` says what `call` is given."""

    def kernel(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = call(*arguments(*args, **kwargs))
        return result

    return kernel


_level = function("sw_level", c_char_p)
_set_level = function("sw_set_level", c_int32, c_int32)


def level() -> str:
    """The instruction set in use."""
    return str(_level().decode())


def set_level(name: str) -> str:
    """Use no instruction set beyond this one; returns the one now in use. For tests."""
    return LEVELS[_set_level(LEVELS.index(name))]


crc32c = native(
    hashing.crc32c,
    function("sw_crc32c", c_uint32, Array, c_uint64, c_uint32),
    lambda data, start=0: (data, data.size, start),
)
