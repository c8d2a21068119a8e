"""The compiled twin of sketch_reference.py: same signatures, same results.

Nothing here checks its arguments: callers pass contiguous arrays of the right dtype.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_int32, c_int64, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.lattice.native import bind
from sumwire.kernels.sketch.reference import Coordinates, Geometry, Ints, Words

NAME = "native"


class _Geometry(Structure):
    _fields_ = (
        ("size", c_uint64),
        ("log_block", c_int32),
        ("probes", c_int32),
        ("table", c_uint64),
        ("span", c_uint64),
        ("words", c_uint64),
        ("key", c_uint64),
    )


_lib = bind(
    {
        "sw_sketch_nonzeros": ([c_void_p, c_uint64, c_void_p, c_void_p], c_uint64),
        "sw_sketch_quantize": ([c_void_p, c_uint64, c_int32, c_int32, c_void_p, c_void_p], c_uint64),
        "sw_sketch_insert": ([c_void_p, c_void_p, c_void_p, c_uint64, c_void_p], c_int64),
        "sw_sketch_mark": ([c_void_p, c_void_p, c_uint64, c_void_p], None),
        "sw_sketch_candidates": ([c_void_p, c_void_p, c_void_p], c_uint64),
        "sw_sketch_peel": ([c_void_p, c_void_p, c_uint64, *[c_void_p] * 4], c_int64),
        "sw_sketch_checksum": ([c_uint64, c_void_p, c_void_p, c_uint64], c_uint64),
        "sw_sketch_finish": ([c_void_p, c_void_p, c_uint64, c_int32, c_int32, c_void_p], None),
    }
)


_MORE = 64
"""What vectors may write behind the end."""


def _cut(array: NDArray[np.uint32], length: int) -> NDArray[np.uint32]:
    """The array without its end, which never got real memory, and without a copy."""
    array.resize(length, refcheck=False)
    return array


def _view(geometry: Geometry) -> Any:
    g = geometry
    return byref(_Geometry(g.size, g.log_block, g.probes, g.table, g.span, g.words, g.key))


def nonzeros(x: NDArray[np.float32]) -> tuple[Coordinates, NDArray[np.uint32]]:
    at, words = np.empty(x.size + _MORE, np.uint32), np.empty(x.size, np.uint32)
    found = _lib.sw_sketch_nonzeros(x.ctypes.data, x.size, at.ctypes.data, words.ctypes.data)
    return _cut(at, found), _cut(words, found)


def quantize(bits: NDArray[np.uint32], exponent: int, lsb: int) -> tuple[Ints, NDArray[np.bool_]]:
    out, escapes = np.empty(bits.size, np.int64), np.empty(bits.size, np.bool_)
    _lib.sw_sketch_quantize(bits.ctypes.data, bits.size, exponent, lsb, out.ctypes.data, escapes.ctypes.data)
    return out, escapes


def insert(geometry: Geometry, at: Coordinates, values: Ints, cells: Ints) -> None:
    if _lib.sw_sketch_insert(_view(geometry), at.ctypes.data, values.ctypes.data, len(at), cells.ctypes.data) < 0:
        raise MemoryError(f"no memory to insert {len(at)} values")


def mark(geometry: Geometry, at: Coordinates, words: Words) -> None:
    _lib.sw_sketch_mark(_view(geometry), at.ctypes.data, len(at), words.ctypes.data)


def candidates(geometry: Geometry, words: Words) -> Coordinates:
    out = np.empty(geometry.size + _MORE, np.uint32)
    found = _lib.sw_sketch_candidates(_view(geometry), words.ctypes.data, out.ctypes.data)
    return _cut(out, found)


def peel(geometry: Geometry, at: Coordinates, cells: Ints, values: Ints, rest: Ints) -> NDArray[np.bool_]:
    left = np.empty(len(at), np.bool_)
    arrays = [array.ctypes.data for array in (cells, values, left, rest)]
    if _lib.sw_sketch_peel(_view(geometry), at.ctypes.data, len(at), *arrays) < 0:
        raise MemoryError(f"no memory to peel {len(at)} values")
    return left


def checksum(key: int, at: Coordinates, values: Ints) -> int:
    return int(_lib.sw_sketch_checksum(key, at.ctypes.data, values.ctypes.data, len(at)))


def finish(at: Coordinates, values: Ints, lsb: int, count: int, out: NDArray[np.float32]) -> None:
    _lib.sw_sketch_finish(at.ctypes.data, values.ctypes.data, len(values), lsb, count, out.ctypes.data)
