"""The compiled twin of reference.py: same signatures, same bytes, near the memory's speed.

ctypes releases the GIL for the length of each call. Nothing here checks its arguments: callers pass
contiguous arrays of the right dtype (the codec sees to that).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import Structure, byref, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels.lattice.layout import Bytes, Ints
from sumwire.kernels.lattice.reference import AnyArray, Floats
from sumwire.kernels.lattice.scheme import MAX_BITS, MAX_LOG_BLOCK, Keys, Scheme

NAME = "native"
LEVELS = ("portable", "avx2", "avx512")

_ABI = 5
_KINDS = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2, np.dtype(np.float64): 3}


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


_DECODE = [*[c_void_p] * 5, c_uint32, c_void_p, *[c_uint64] * 3]
_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "sw_abi": ([], c_int32),
    "sw_level": ([], c_char_p),
    "sw_set_level": ([c_int32], c_int32),
    "sw_measure": ([c_void_p, c_void_p, c_int32, c_uint64, c_void_p, c_uint64, c_uint64], None),
    "sw_allocate": ([c_void_p, c_uint64, c_int32, c_int64, c_int64, c_uint32, c_int32, c_void_p], None),
    "sw_encode": (
        [c_void_p, c_void_p, c_int32, c_uint64, *[c_void_p] * 6, c_uint64, c_uint64],
        c_int64,
    ),
    "sw_add": (
        [c_void_p, c_uint64, c_void_p, c_void_p, c_uint64, c_void_p, c_void_p, c_int32, c_uint64, c_uint64],
        None,
    ),
    "sw_add_lanes": ([c_void_p, c_uint64, c_void_p, c_void_p, c_void_p, c_uint64, c_uint64], None),
    "sw_pack_lanes": ([c_void_p, c_uint64, c_void_p, c_void_p, c_void_p, c_uint64, c_uint64], None),
    "sw_unpack_lanes": ([c_void_p, c_uint64, c_void_p, c_void_p, c_void_p, c_uint64, c_uint64], None),
    "sw_pack_words": ([c_void_p, c_uint64, c_void_p, c_void_p, c_void_p, c_uint64, c_uint64], None),
    "sw_unpack_words": ([c_void_p, c_uint64, c_void_p, c_void_p, c_uint32, c_void_p, c_uint64, c_uint64], None),
    "sw_decode": (_DECODE, None),
    "sw_decode_packed": (_DECODE, None),
    "sw_rotate": ([c_void_p, c_uint64, c_int32, c_uint32, c_int32, c_void_p], None),
    "sw_crc32c": ([c_void_p, c_uint64, c_uint32], c_uint32),
}


def _load() -> ctypes.CDLL:
    found = sorted(Path(__file__).parents[1].glob("libsumwire.*"))
    if not found:
        raise OSError("libsumwire is not beside this file: it was installed without a C++ compiler")
    library = ctypes.CDLL(str(found[0]))
    if not hasattr(library, "sw_abi") or library.sw_abi() != _ABI:
        raise OSError(f"{found[0].name} is of another release of Sumwire: reinstall it")
    return library


_lib = _load()


def bind(signatures: Mapping[str, tuple[list[Any], Any]]) -> ctypes.CDLL:
    """The library, with these functions ready to be called."""
    for name, (arguments, result) in signatures.items():
        function = getattr(_lib, name)
        function.argtypes, function.restype = arguments, result
    return _lib


bind(_SIGNATURES)


def level() -> str:
    """The instruction set in use."""
    return str(_lib.sw_level().decode())


def set_level(name: str) -> str:
    """Use no better instruction set than this one; returns what is in use then. For tests."""
    return LEVELS[_lib.sw_set_level(LEVELS.index(name))]


def _view(scheme: Scheme) -> int:
    """Address of the scheme as the library sees it, made once per scheme."""
    known = scheme.native.get("view")
    if known is None:
        view = _Scheme(scheme.log_block, int(scheme.rotate))
        for width, spec in enumerate(scheme.lattices):
            if spec is None:
                continue
            view.lattices[width] = _Lattice(
                spec.granularity,
                spec.fraction_bits,
                spec.rotation_bits,
                spec.lane_bits,
                spec.lanes_per_word,
                spec.word_bias,
                spec.encode_gain,
                spec.decode_gain,
            )
            for log_size in range(scheme.log_block + 1):
                view.square_limit[log_size][width] = scheme.square_limit(1 << log_size, width)
        for (cls, width), table in scheme.tables.items():
            view.tables[cls][width] = _Table(
                table.values.ctypes.data,
                table.lower.ctypes.data,
                table.gap.ctypes.data,
                None if table.bytes64 is None else table.bytes64.ctypes.data,
            )
        # Several threads may come here at once: the first one's view is everybody's.
        known = scheme.native.setdefault("view", view)
    return ctypes.addressof(known)


def measure(x: AnyArray, scheme: Scheme, out: Floats, lo: int, hi: int) -> None:
    _lib.sw_measure(_view(scheme), x.ctypes.data, _KINDS[x.dtype], x.size, out.ctypes.data, lo, hi)


def allocate(
    scales: Floats, sizes: Ints, budget: int, energy: int, ladder: Sequence[int], floor: int, out: Bytes
) -> None:
    if not len(sizes):
        return
    size, log_block = int(sizes.sum()), int(sizes[0]).bit_length() - 1
    mask = sum(1 << width for width in set(ladder))
    _lib.sw_allocate(scales.ctypes.data, size, log_block, budget, energy, mask, floor, out.ctypes.data)


def encode(
    scheme: Scheme,
    x: AnyArray,
    scales: Floats,
    classes: Bytes,
    widths: Bytes,
    keys: Keys,
    out: Bytes,
    residual: Floats | None,
    lo: int,
    hi: int,
) -> int:
    return int(
        _lib.sw_encode(
            _view(scheme),
            x.ctypes.data,
            _KINDS[x.dtype],
            x.size,
            scales.ctypes.data,
            classes.ctypes.data,
            widths.ctypes.data,
            byref(_Keys(keys.sign, keys.noise, keys.dither, keys.shift)),
            out.ctypes.data,
            None if residual is None else residual.ctypes.data,
            lo,
            hi,
        )
    )


def add(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    lanes: Bytes,
    payloads: Sequence[tuple[Bytes, Bytes]],
    fresh: bool,
    lo: int,
    hi: int,
) -> None:
    pointers = c_void_p * len(payloads)
    data = pointers(*[data.ctypes.data for data, _ in payloads])
    widths = pointers(*[widths.ctypes.data for _, widths in payloads])
    _lib.sw_add(
        _view(scheme),
        size,
        classes.ctypes.data,
        lanes.ctypes.data,
        len(payloads),
        data,
        widths,
        int(fresh),
        lo,
        hi,
    )


def add_lanes(scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, other: Bytes, lo: int, hi: int) -> None:
    _lib.sw_add_lanes(_view(scheme), size, classes.ctypes.data, lanes.ctypes.data, other.ctypes.data, lo, hi)


def pack_lanes(scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, out: Bytes, lo: int, hi: int) -> None:
    _lib.sw_pack_lanes(_view(scheme), size, classes.ctypes.data, lanes.ctypes.data, out.ctypes.data, lo, hi)


def unpack_lanes(scheme: Scheme, size: int, classes: Bytes, data: Bytes, lanes: Bytes, lo: int, hi: int) -> None:
    _lib.sw_unpack_lanes(_view(scheme), size, classes.ctypes.data, data.ctypes.data, lanes.ctypes.data, lo, hi)


def pack_words(
    scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, out: NDArray[np.int32], lo: int, hi: int
) -> None:
    _lib.sw_pack_words(_view(scheme), size, classes.ctypes.data, lanes.ctypes.data, out.ctypes.data, lo, hi)


def unpack_words(
    scheme: Scheme, size: int, classes: Bytes, data: NDArray[np.int32], count: int, lanes: Bytes, lo: int, hi: int
) -> None:
    _lib.sw_unpack_words(_view(scheme), size, classes.ctypes.data, data.ctypes.data, count, lanes.ctypes.data, lo, hi)


def decode(
    scheme: Scheme,
    lanes: Bytes,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: Floats,
    lo: int,
    hi: int,
) -> None:
    _decode(_lib.sw_decode, scheme, lanes, counts, scales, classes, sign_key, out, lo, hi)


def decode_packed(
    scheme: Scheme,
    data: Bytes,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: Floats,
    lo: int,
    hi: int,
) -> None:
    _decode(_lib.sw_decode_packed, scheme, data, counts, scales, classes, sign_key, out, lo, hi)


def _decode(function: Any, scheme: Scheme, lanes: Bytes, *arguments: Any) -> None:
    counts, scales, classes, sign_key, out, lo, hi = arguments
    arrays = (array.ctypes.data for array in (lanes, counts, scales, classes))
    function(_view(scheme), *arrays, sign_key, out.ctypes.data, out.size, lo, hi)


def rotate(x: Floats, log_block: int, key: int, inverse: bool, out: Floats) -> None:
    _lib.sw_rotate(x.ctypes.data, x.size, log_block, key, int(inverse), out.ctypes.data)


def crc32c(data: Bytes, start: int = 0) -> int:
    return int(_lib.sw_crc32c(data.ctypes.data, data.size, start))
