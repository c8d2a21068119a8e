"""The compiled twin of sparse_reference.py: same signatures, same bits."""

from __future__ import annotations

from ctypes import Structure, byref, c_float, c_int32, c_uint64, c_void_p

import numpy as np

from sumwire.kernels.lattice.layout import Bytes, Ints
from sumwire.kernels.lattice.native import bind
from sumwire.kernels.lattice.reference import AnyArray, Floats
from sumwire.kernels.sparse.index_coding import error
from sumwire.kernels.sparse.reference import Words

NAME = "native"

_KINDS = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2}
_SLACK = 8
"""Bytes beyond a coded index that its writer may touch."""


class _Shard(Structure):
    _fields_ = (("starts", c_void_p), ("blocks", c_uint64), ("block", c_uint64), ("size", c_uint64))


class _Plan(Structure):
    _fields_ = (("bytes", c_uint64), ("count", c_uint64), ("mode", c_int32), ("k0", c_int32), ("k1", c_int32))


_lib = bind(
    {
        "sw_sparse_scan": ([c_void_p, c_int32, c_void_p, c_void_p], None),
        "sw_sparse_compact": ([c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_uint64], c_uint64),
        "sw_sparse_gather": ([c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_uint64], c_uint64),
        "sw_sparse_expand": ([c_void_p, c_void_p, c_uint64, c_void_p, c_float, c_int32, c_void_p], None),
        "sw_sparse_accumulate": ([c_void_p, c_uint64, c_void_p, c_void_p, c_int32, c_uint64], None),
        "sw_sparse_accumulate_at": ([c_void_p, c_void_p, c_void_p, c_int32, c_uint64], None),
        "sw_count_bits": ([c_void_p, c_uint64], c_uint64),
        "sw_set_bits": ([c_void_p, c_void_p, c_uint64], None),
        "sw_index_plan_for": ([c_void_p, c_uint64, c_void_p], None),
        "sw_index_encode": ([c_void_p, c_uint64, c_void_p, c_void_p], None),
        "sw_index_plan_positions": ([c_void_p, c_uint64, c_uint64, c_void_p], None),
        "sw_index_encode_positions": ([c_void_p, c_uint64, c_uint64, c_void_p, c_void_p], None),
        "sw_index_decode": ([c_void_p, c_uint64, c_uint64, c_void_p, c_void_p, c_void_p], c_int32),
        "sw_index_measure": ([c_void_p, c_uint64, c_uint64, c_void_p, c_void_p], c_int32),
        "sw_index_positions": ([c_void_p, c_uint64, c_uint64, c_void_p, c_uint64, c_void_p, c_void_p], c_int32),
    }
)


def _shard(starts: Ints, block: int, size: int) -> _Shard:
    return _Shard(starts.ctypes.data, len(starts), block, size)


def scan(x: AnyArray, starts: Ints, block: int, words: Words) -> None:
    _lib.sw_sparse_scan(x.ctypes.data, _KINDS[x.dtype], byref(_shard(starts, block, x.size)), words.ctypes.data)


def compact(x: AnyArray, starts: Ints, block: int, words: Words, values: AnyArray) -> int:
    shard = _shard(starts, block, x.size)
    to, room = values.ctypes.data, len(values)
    return int(_lib.sw_sparse_compact(x.ctypes.data, _KINDS[x.dtype], byref(shard), words.ctypes.data, to, room))


def gather(x: AnyArray, starts: Ints, block: int, words: Words, values: AnyArray) -> int:
    shard = _shard(starts, block, x.size)
    to, room = values.ctypes.data, len(values)
    return int(_lib.sw_sparse_gather(x.ctypes.data, _KINDS[x.dtype], byref(shard), words.ctypes.data, to, room))


def expand(
    words: Words, values: Floats, starts: Ints, block: int, out: Floats, divisor: float = 1.0, clean: bool = False
) -> None:
    shard = _shard(starts, block, out.size)
    _lib.sw_sparse_expand(
        words.ctypes.data, values.ctypes.data, len(values), byref(shard), float(divisor), clean, out.ctypes.data
    )


def accumulate(acc: Floats, words: Words, values: AnyArray) -> None:
    _lib.sw_sparse_accumulate(
        acc.ctypes.data, len(acc), words.ctypes.data, values.ctypes.data, _KINDS[values.dtype], len(values)
    )


def accumulate_at(acc: Floats, at: Ints, values: AnyArray) -> None:
    _lib.sw_sparse_accumulate_at(acc.ctypes.data, at.ctypes.data, values.ctypes.data, _KINDS[values.dtype], len(at))


def count(words: Words) -> int:
    return int(_lib.sw_count_bits(words.ctypes.data, len(words)))


def set_bits(words: Words, at: Ints) -> None:
    _lib.sw_set_bits(words.ctypes.data, at.ctypes.data, len(at))


def _plan(words: Words, bits: int) -> _Plan:
    plan = _Plan()
    _lib.sw_index_plan_for(words.ctypes.data, bits, byref(plan))
    return plan


def index_bytes(words: Words, bits: int) -> int:
    return int(_plan(words, bits).bytes)


def encode_index(words: Words, bits: int, out: Bytes | None = None) -> Bytes:
    plan = _plan(words, bits)
    if out is None or len(out) < plan.bytes + _SLACK:
        out = np.empty(plan.bytes + _SLACK, np.uint8)
    _lib.sw_index_encode(words.ctypes.data, bits, byref(plan), out.ctypes.data)
    return out[: plan.bytes]


def decode_index(data: Bytes, bits: int, words: Words) -> tuple[int, int]:
    count, used = c_uint64(), c_uint64()
    bad = _lib.sw_index_decode(data.ctypes.data, len(data), bits, words.ctypes.data, byref(count), byref(used))
    if bad:
        raise error(bad, bits)
    return count.value, used.value


def encode_positions(at: Ints, bits: int) -> Bytes:
    plan = _Plan()
    _lib.sw_index_plan_positions(at.ctypes.data, len(at), bits, byref(plan))
    out = np.empty(plan.bytes + _SLACK, np.uint8)
    _lib.sw_index_encode_positions(at.ctypes.data, len(at), bits, byref(plan), out.ctypes.data)
    return out[: plan.bytes]


def measure_index(data: Bytes, bits: int) -> tuple[int, int]:
    count, used = c_uint64(), c_uint64()
    bad = _lib.sw_index_measure(data.ctypes.data, len(data), bits, byref(count), byref(used))
    if bad:
        raise error(bad, bits)
    return count.value, used.value


def decode_positions(data: Bytes, bits: int, room: int) -> tuple[Ints, int]:
    at, count, used = np.empty(min(room, bits), np.int64), c_uint64(), c_uint64()
    bad = _lib.sw_index_positions(data.ctypes.data, len(data), bits, at.ctypes.data, len(at), byref(count), byref(used))
    if bad:
        raise error(bad, bits)
    return at[: count.value], used.value
