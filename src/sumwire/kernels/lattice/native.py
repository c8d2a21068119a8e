"""The compiled implementation of reference.py: the same bytes, near the memory's speed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import Structure, byref, c_double, c_int16, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from sumwire.kernels.arrays import Bytes
from sumwire.kernels.lattice import narrowing, reference, scales, segments, streams
from sumwire.kernels.lattice.narrow_tables import QUANTIZERS
from sumwire.kernels.lattice.scheme import ENERGY_STEPS, MAX_BITS, MAX_LOG_BLOCK, Keys, Scheme
from sumwire.kernels.lattice.segments import Segments
from sumwire.kernels.native import Array, address, function, kind, native


class _Lattice(Structure):
    _fields_ = (
        ("granularity", c_int32),
        ("fraction_bits", c_int32),
        ("rotation_bits", c_int32),
        ("lane_bits", c_int32),
        ("lanes_per_word", c_int32),
        ("word_bias", c_uint32),
        ("encode_gain", c_double),
        ("decode_gain", c_double),
        ("shrink", c_double),
        ("energy_gain", c_double),
        ("corrections", c_int16 * ENERGY_STEPS),
    )


class _Table(Structure):
    _fields_ = (("values", c_void_p), ("lower", c_void_p), ("gap", c_void_p), ("bytes64", c_void_p))


_WIDTHS = MAX_BITS + 1


class _Scheme(Structure):
    _fields_ = (
        ("log_block", c_int32),
        ("rotate", c_int32),
        ("lattices", _Lattice * _WIDTHS),
        ("tables", (_Table * _WIDTHS) * _WIDTHS),
        ("square_limit", (c_int64 * _WIDTHS) * (MAX_LOG_BLOCK + 1)),
    )


class _Keys(Structure):
    _fields_ = (("sign", c_uint32), ("noise", c_uint32), ("dither", c_uint32), ("shift", c_uint32))


def _view(scheme: Scheme) -> int:
    """Address of the scheme as the library sees it, made once per scheme."""
    known = scheme.native.get("view")
    if known is None:
        view = _Scheme(scheme.log_block, int(scheme.rotate))
        for width, spec in enumerate(scheme.lattices):
            if spec is None:
                continue
            view.lattices[width] = _Lattice(*(getattr(spec, name) for name, _ in _Lattice._fields_))
            for log_size in range(scheme.log_block + 1):
                view.square_limit[log_size][width] = scheme.square_limit(1 << log_size, width)
        for (cls, width), table in scheme.tables.items():
            view.tables[cls][width] = _Table(
                *(
                    None if array is None else address(array)
                    for array in (table.values, table.lower, table.gap, table.bytes64)
                )
            )
        # Several threads may get here at once: all of them use the view of the first.
        known = scheme.native.setdefault("view", view)
    return ctypes.addressof(known)


class _SchemePointer:
    """An argument type: a Scheme."""

    @classmethod
    def from_param(cls, scheme: Scheme) -> c_void_p:
        return c_void_p(_view(scheme))


class _KeysPointer:
    """An argument type: Keys."""

    @classmethod
    def from_param(cls, keys: Keys) -> Any:
        return byref(_Keys(keys.sign, keys.noise, keys.dither, keys.shift))


_RANGE = (c_uint64, c_uint64)
_LANES = (_SchemePointer, c_uint64, Array, Array, Array, *_RANGE)
_DECODE = (_SchemePointer, *[Array] * 4, c_uint32, Array, c_uint64, *_RANGE)

add_lanes = function("sw_add_lanes", None, *_LANES)
pack_lanes = function("sw_pack_lanes", None, *_LANES)
unpack_lanes = function("sw_unpack_lanes", None, *_LANES)
pack_words = function("sw_pack_words", None, *_LANES)
unpack_words = function("sw_unpack_words", None, _SchemePointer, c_uint64, Array, Array, c_uint32, Array, *_RANGE)

measure = native(
    reference.measure,
    function("sw_measure", None, _SchemePointer, Array, c_int32, c_uint64, Array, *_RANGE),
    lambda x, scheme, out, lo, hi: (scheme, x, kind(x), x.size, out, lo, hi),
)
round_scales = native(
    scales.round_scales,
    function("sw_round_scales", None, Array, c_uint64),
    lambda scales: (scales, len(scales)),
)
encode = native(
    reference.encode,
    function(
        "sw_encode",
        c_int64,
        _SchemePointer,
        Array,
        c_int32,
        c_uint64,
        *[Array] * 3,
        _KeysPointer,
        Array,
        Array,
        *_RANGE,
    ),
    lambda scheme, x, scales, classes, widths, keys, out, residual, lo, hi: (
        (scheme, x, kind(x), x.size, scales, classes, widths, keys, out, residual, lo, hi)
    ),
)
decode = native(
    reference.decode,
    function("sw_decode", None, *_DECODE),
    lambda scheme, lanes, counts, scales, classes, sign_key, out, lo, hi: (
        (scheme, lanes, counts, scales, classes, sign_key, out, out.size, lo, hi)
    ),
)
decode_packed = native(
    reference.decode_packed,
    function("sw_decode_packed", None, *_DECODE),
    lambda scheme, data, counts, scales, classes, sign_key, out, lo, hi: (
        (scheme, data, counts, scales, classes, sign_key, out, out.size, lo, hi)
    ),
)
rotate = native(
    reference.rotate,
    function("sw_rotate", None, Array, c_uint64, c_int32, c_uint32, c_int32, Array),
    lambda x, log_block, key, inverse, out: (x, x.size, log_block, key, inverse, out),
)


def _addresses(arrays: Iterable[Bytes]) -> Any:
    found = [address(array) for array in arrays]
    return (c_void_p * len(found))(*found)


@cache
def _bit_set(numbers: tuple[int, ...]) -> int:
    return sum(1 << number for number in set(numbers))


add = native(
    reference.add,
    function("sw_add", None, _SchemePointer, c_uint64, Array, Array, c_uint64, c_void_p, c_void_p, c_int32, *_RANGE),
    lambda scheme, size, classes, lanes, payloads, fresh, lo, hi: (
        scheme,
        size,
        classes,
        lanes,
        len(payloads),
        _addresses(data for data, _ in payloads),
        _addresses(widths for _, widths in payloads),
        fresh,
        lo,
        hi,
    ),
)
allocate = native(
    reference.allocate,
    function("sw_allocate", None, Array, c_uint64, c_int32, c_int64, c_int64, c_uint32, c_int32, Array),
    lambda scales, size, log_block, budget, energy, ladder, floor, out: (
        (scales, size, log_block, budget, energy, _bit_set(ladder), floor, out)
    ),
)

# Narrow sums

_LINES = 5


class _Quantizer(Structure):
    _fields_ = (
        ("magnitudes", c_void_p),
        ("levels", c_void_p),
        ("density", c_int32),
        ("slopes", c_int32 * _LINES),
        ("offsets", c_int32 * _LINES),
        ("unit", c_double),
    )


class _Segments(Structure):
    _fields_ = (
        ("count", c_uint64),
        ("energy", c_int64),
        ("edges", c_void_p),
        ("budgets", c_void_p),
        ("bytes_at", c_void_p),
    )


def _quantizers() -> tuple[Any, list[Any]]:
    """The tables as the library sees them, and the arrays that they point to."""
    view, kept = (_Quantizer * (MAX_BITS + 1))(), []
    for width, quantizer in QUANTIZERS.items():
        levels = quantizer.level_array.astype(np.uint16)
        kept += [levels, quantizer.magnitudes]
        lines = (c_int32 * _LINES)(*quantizer.slopes), (c_int32 * _LINES)(*quantizer.offsets)
        addresses = (array.ctypes.data for array in (quantizer.magnitudes, levels))
        view[width] = _Quantizer(*addresses, quantizer.density, *lines, quantizer.unit)
    return view, kept


_tables, _kept = _quantizers()
_TABLES = ctypes.addressof(_tables)


def _segments(cut: Segments, lo: int, hi: int) -> Any:
    """Those of blocks lo..hi."""
    which = cut.between(lo, hi)
    count = which.stop - which.start
    edges, budgets, bytes_at = cut.addresses
    first = 8 * which.start
    return byref(_Segments(count, cut.energy, edges + first, budgets + first, bytes_at + first))


allocate_sums = native(
    segments.allocate_sums,
    function("sw_allocate_sums", None, Array, c_uint64, c_int32, Array, c_int64, c_int64, Array),
    lambda scales, size, log_block, lanes, budget, energy, out: ((scales, size, log_block, lanes, budget, energy, out)),
)
narrow_widths = native(
    segments.narrow_widths,
    function("sw_narrow_widths", None, _SchemePointer, c_uint64, *[Array] * 3, c_void_p, Array, *_RANGE),
    lambda scheme, size, classes, scales, coarse, segments, out, lo, hi: (
        (scheme, size, classes, scales, coarse, _segments(segments, lo, hi), out, lo, hi)
    ),
)
narrow = native(
    narrowing.narrow,
    function("sw_narrow", None, _SchemePointer, c_void_p, c_uint64, *[Array] * 4, c_void_p, *[Array] * 3, *_RANGE),
    lambda scheme, size, classes, scales, counts, lanes, segments, coarse, fine, data, lo, hi: (
        scheme, _TABLES, size, classes, scales, counts, lanes, _segments(segments, lo, hi), coarse, fine, data, lo, hi
    ),
)  # fmt: skip
decode_narrow = native(
    narrowing.decode_narrow,
    function(
        "sw_decode_narrow",
        None,
        _SchemePointer,
        c_void_p,
        *[Array] * 4,
        c_void_p,
        *[Array] * 3,
        c_uint32,
        Array,
        c_uint64,
        *_RANGE,
    ),
    lambda scheme, coarse, fine, widths, data, segments, counts, scales, classes, sign_key, out, lo, hi: (
        scheme, _TABLES, coarse, fine, widths, data, _segments(segments, lo, hi), counts, scales, classes, sign_key,
        out, out.size, lo, hi,
    ),
)  # fmt: skip

gather_blocks = native(
    streams.gather_blocks,
    function("sw_gather_blocks", None, Array, Array, c_uint64, c_uint64, Array),
    lambda data, starts, nbytes, out: (data, starts, nbytes, len(starts), out),
)
spread_lanes = native(
    streams.spread_lanes,
    function("sw_spread_lanes", None, Array, *[c_uint32] * 5, Array, c_uint64, Array),
    lambda data, block, width, bits, lane, starts, out: (
        data,
        block,
        width,
        bits,
        streams.lanes_per_word(width, bits),
        lane,
        starts,
        len(starts),
        out,
    ),
)
