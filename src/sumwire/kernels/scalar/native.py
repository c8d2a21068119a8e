"""The compiled implementation of reference.py: the same bits."""

from __future__ import annotations

from ctypes import c_int32, c_uint32, c_uint64

from sumwire.kernels.native import Array, function, native
from sumwire.kernels.scalar import reference

_BLOCKS = (Array, c_uint64, c_int32)
_STREAM = (Array, c_uint64, c_int32, Array)

summarize = native(
    reference.summarize,
    function("sw_scalar_summarize", None, *_BLOCKS, Array, Array, Array),
    lambda x, log_block, low, high, squares: (x, x.size, log_block, low, high, squares),
)
quantize = native(
    reference.quantize,
    function("sw_scalar_quantize", None, *_BLOCKS, Array, Array, c_uint32, c_uint32, c_uint32, Array, Array),
    lambda x, log_block, low, gain, levels, key, first, noise, out: (
        (x, x.size, log_block, low, gain, levels, key, first, noise, out)
    ),
)
dequantize = native(
    reference.dequantize,
    function("sw_scalar_dequantize", None, *_BLOCKS, Array, Array, Array),
    lambda index, log_block, low, step, out: (index, index.size, log_block, low, step, out),
)
nearest = native(
    reference.nearest,
    function("sw_scalar_nearest", None, *_BLOCKS, Array, Array, Array, c_int32, Array, Array),
    lambda x, log_block, gain, edges, centers, out, dots: (
        (x, x.size, log_block, gain, edges, centers, len(edges).bit_length(), out, dots)
    ),
)
look_up = native(
    reference.look_up,
    function("sw_scalar_look_up", None, *_BLOCKS, Array, Array, Array),
    lambda index, log_block, scale, centers, out: (index, index.size, log_block, scale, centers, out),
)
pack = native(
    reference.pack,
    function("sw_scalar_pack", None, *_STREAM),
    lambda index, width, out: (index, index.size, width, out),
)
unpack = native(
    reference.unpack,
    function("sw_scalar_unpack", None, *_STREAM),
    lambda data, width, out: (data, out.size, width, out),
)
