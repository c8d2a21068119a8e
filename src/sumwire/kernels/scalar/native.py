"""The compiled twin of levels_reference.py: same signatures, same bits."""

from __future__ import annotations

from ctypes import c_int32, c_uint32, c_uint64, c_void_p

from sumwire.kernels.lattice.layout import Bytes
from sumwire.kernels.lattice.native import bind
from sumwire.kernels.lattice.reference import Floats
from sumwire.kernels.scalar.reference import Doubles, Indices, Words

NAME = "native"

_BLOCKS = [c_void_p, c_uint64, c_int32]
_lib = bind(
    {
        "sw_levels_summarize": ([*_BLOCKS, c_void_p, c_void_p, c_void_p], None),
        "sw_levels_quantize": ([*_BLOCKS, c_void_p, c_void_p, *[c_uint32] * 3, c_void_p, c_void_p], None),
        "sw_levels_dequantize": ([*_BLOCKS, c_void_p, c_void_p, c_void_p], None),
        "sw_levels_nearest": ([*_BLOCKS, *[c_void_p] * 3, c_int32, c_void_p, c_void_p], None),
        "sw_levels_look_up": ([*_BLOCKS, c_void_p, c_void_p, c_void_p], None),
        "sw_levels_pack": ([c_void_p, c_uint64, c_int32, c_void_p], None),
        "sw_levels_unpack": ([c_void_p, c_uint64, c_int32, c_void_p], None),
    }
)


def summarize(x: Floats, log_block: int, low: Floats, high: Floats, squares: Doubles) -> None:
    _lib.sw_levels_summarize(x.ctypes.data, x.size, log_block, low.ctypes.data, high.ctypes.data, squares.ctypes.data)


def quantize(
    x: Floats,
    log_block: int,
    low: Doubles,
    gain: Doubles,
    levels: int,
    key: int,
    first: int,
    noise: Words | None,
    out: Indices,
) -> None:
    _lib.sw_levels_quantize(
        x.ctypes.data,
        x.size,
        log_block,
        low.ctypes.data,
        gain.ctypes.data,
        levels,
        key,
        first & 0xFFFFFFFF,
        None if noise is None else noise.ctypes.data,
        out.ctypes.data,
    )


def dequantize(index: Indices, log_block: int, low: Doubles, step: Doubles, out: Floats) -> None:
    _lib.sw_levels_dequantize(
        index.ctypes.data, index.size, log_block, low.ctypes.data, step.ctypes.data, out.ctypes.data
    )


def nearest(
    x: Floats, log_block: int, gain: Floats, edges: Floats, centres: Floats, out: Indices, dots: Doubles
) -> None:
    bits = len(edges).bit_length()
    arrays = (array.ctypes.data for array in (gain, edges, centres))
    _lib.sw_levels_nearest(x.ctypes.data, x.size, log_block, *arrays, bits, out.ctypes.data, dots.ctypes.data)


def look_up(index: Indices, log_block: int, scale: Floats, centres: Floats, out: Floats) -> None:
    arrays = (array.ctypes.data for array in (scale, centres, out))
    _lib.sw_levels_look_up(index.ctypes.data, index.size, log_block, *arrays)


def pack(index: Indices, width: int, out: Bytes) -> None:
    _lib.sw_levels_pack(index.ctypes.data, index.size, width, out.ctypes.data)


def unpack(data: Bytes, width: int, out: Indices) -> None:
    _lib.sw_levels_unpack(data.ctypes.data, out.size, width, out.ctypes.data)
