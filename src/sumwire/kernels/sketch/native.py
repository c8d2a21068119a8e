"""The compiled implementation of reference.py: the same results."""

from __future__ import annotations

from ctypes import Structure, byref, c_int32, c_int64, c_uint64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.arrays import Floats, Ints, Words
from sumwire.kernels.native import Array, function, native
from sumwire.kernels.sketch import reference
from sumwire.kernels.sketch.reference import Coordinates, Geometry


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

    @classmethod
    def from_param(cls, geometry: Geometry) -> Any:
        return byref(cls(*(getattr(geometry, name) for name, _ in cls._fields_)))


_nonzeros = function("sw_sketch_nonzeros", c_uint64, Array, c_uint64, Array, Array)
_quantize = function("sw_sketch_quantize", c_uint64, Array, c_uint64, c_int32, c_int32, Array, Array)
_insert = function("sw_sketch_insert", c_int64, _Geometry, Array, Array, c_uint64, Array)
_candidates = function("sw_sketch_candidates", c_uint64, _Geometry, Array, Array)
_peel = function("sw_sketch_peel", c_int64, _Geometry, Array, c_uint64, Array, Array, Array, Array)

_MORE = 64
"""Elements that vectors may write behind the end."""


def _cut(array: NDArray[np.uint32], length: int) -> NDArray[np.uint32]:
    """The array without its end, which was never written, and without a copy."""
    array.resize(length, refcheck=False)
    return array


def nonzeros(x: Floats) -> tuple[Coordinates, NDArray[np.uint32]]:
    at, words = np.empty(x.size + _MORE, np.uint32), np.empty(x.size, np.uint32)
    found = _nonzeros(x, x.size, at, words)
    return _cut(at, found), _cut(words, found)


def quantize(bits: NDArray[np.uint32], exponent: int, lsb: int) -> tuple[Ints, NDArray[np.bool_]]:
    out, escapes = np.empty(bits.size, np.int64), np.empty(bits.size, np.bool_)
    _quantize(bits, bits.size, exponent, lsb, out, escapes)
    return out, escapes


def insert(geometry: Geometry, at: Coordinates, values: Ints, cells: Ints) -> None:
    if _insert(geometry, at, values, len(at), cells) < 0:
        raise MemoryError(f"not enough memory to insert {len(at)} values into a sketch")


mark = native(
    reference.mark,
    function("sw_sketch_mark", None, _Geometry, Array, c_uint64, Array),
    lambda geometry, at, words: (geometry, at, len(at), words),
)


def candidates(geometry: Geometry, words: Words) -> Coordinates:
    out = np.empty(geometry.size + _MORE, np.uint32)
    return _cut(out, _candidates(geometry, words, out))


def peel(geometry: Geometry, at: Coordinates, cells: Ints, values: Ints, rest: Ints) -> NDArray[np.bool_]:
    left = np.empty(len(at), np.bool_)
    if _peel(geometry, at, len(at), cells, values, left, rest) < 0:
        raise MemoryError(f"not enough memory to peel {len(at)} values out of a sketch")
    return left


checksum = native(
    reference.checksum,
    function("sw_sketch_checksum", c_uint64, c_uint64, Array, Array, c_uint64),
    lambda key, at, values: (key, at, values, len(at)),
)
finish = native(
    reference.finish,
    function("sw_sketch_finish", None, Array, Array, c_uint64, c_int32, c_int32, Array),
    lambda at, values, lsb, count, out: (at, values, len(values), lsb, count, out),
)
