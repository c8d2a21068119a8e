"""The compiled implementation of reference.py: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, byref, c_float, c_int32, c_uint64, c_void_p
from typing import Any

import numpy as np

from sumwire.kernels.arrays import Bytes, Ints, Words
from sumwire.kernels.native import Array, function, kind, native
from sumwire.kernels.sparse import reference
from sumwire.kernels.sparse.index_coding import error

_SLACK = 8
"""Bytes beyond a coded index that its writer may touch."""


class _Shard(Structure):
    _fields_ = (("starts", c_void_p), ("blocks", c_uint64), ("block", c_uint64), ("size", c_uint64))


class _Plan(Structure):
    _fields_ = (("bytes", c_uint64), ("count", c_uint64), ("mode", c_int32), ("k0", c_int32), ("k1", c_int32))


def _shard(starts: Ints, block: int, size: int) -> Any:
    return byref(_Shard(starts.ctypes.data, len(starts), block, size))


scan = native(
    reference.scan,
    function("sw_sparse_scan", None, Array, c_int32, c_void_p, Array),
    lambda x, starts, block, words: (x, kind(x), _shard(starts, block, x.size), words),
)
compact = native(
    reference.compact,
    function("sw_sparse_compact", c_uint64, Array, c_int32, c_void_p, Array, Array, c_uint64),
    lambda x, starts, block, words, values: ((x, kind(x), _shard(starts, block, x.size), words, values, len(values))),
)
gather = native(
    reference.gather,
    function("sw_sparse_gather", c_uint64, Array, c_int32, c_void_p, Array, Array, c_uint64),
    lambda x, starts, block, words, values: ((x, kind(x), _shard(starts, block, x.size), words, values, len(values))),
)
expand = native(
    reference.expand,
    function("sw_sparse_expand", None, Array, Array, c_uint64, c_void_p, c_float, c_int32, Array),
    lambda words, values, starts, block, out, divisor=1.0, clean=False: (
        (words, values, len(values), _shard(starts, block, out.size), divisor, clean, out)
    ),
)
accumulate = native(
    reference.accumulate,
    function("sw_sparse_accumulate", None, Array, c_uint64, Array, Array, c_int32, c_uint64),
    lambda acc, words, values: (acc, len(acc), words, values, kind(values), len(values)),
)
accumulate_at = native(
    reference.accumulate_at,
    function("sw_sparse_accumulate_at", None, Array, Array, Array, c_int32, c_uint64),
    lambda acc, at, values: (acc, at, values, kind(values), len(at)),
)
count = native(
    reference.count,
    function("sw_count_bits", c_uint64, Array, c_uint64),
    lambda words: (words, len(words)),
)
set_bits = native(
    reference.set_bits,
    function("sw_set_bits", None, Array, Array, c_uint64),
    lambda words, at: (words, at, len(at)),
)

_plan_for = function("sw_index_plan_for", None, Array, c_uint64, c_void_p)
_encode = function("sw_index_encode", None, Array, c_uint64, c_void_p, Array)
_plan_positions = function("sw_index_plan_positions", None, Array, c_uint64, c_uint64, c_void_p)
_encode_positions = function("sw_index_encode_positions", None, Array, c_uint64, c_uint64, c_void_p, Array)
_decode = function("sw_index_decode", c_int32, Array, c_uint64, c_uint64, Array, c_void_p, c_void_p)
_measure = function("sw_index_measure", c_int32, Array, c_uint64, c_uint64, c_void_p, c_void_p)
_positions = function("sw_index_positions", c_int32, Array, c_uint64, c_uint64, Array, c_uint64, c_void_p, c_void_p)


def _plan(words: Words, bits: int) -> _Plan:
    plan = _Plan()
    _plan_for(words, bits, byref(plan))
    return plan


def index_bytes(words: Words, bits: int) -> int:
    return int(_plan(words, bits).bytes)


def encode_index(words: Words, bits: int, out: Bytes | None = None) -> Bytes:
    plan = _plan(words, bits)
    if out is None or len(out) < plan.bytes + _SLACK:
        out = np.empty(plan.bytes + _SLACK, np.uint8)
    _encode(words, bits, byref(plan), out)
    return out[: plan.bytes]


def encode_positions(at: Ints, bits: int) -> Bytes:
    plan = _Plan()
    _plan_positions(at, len(at), bits, byref(plan))
    out = np.empty(plan.bytes + _SLACK, np.uint8)
    _encode_positions(at, len(at), bits, byref(plan), out)
    return out[: plan.bytes]


def _read(call: Callable[..., int], data: Bytes, bits: int, *into: Any) -> tuple[int, int]:
    """The count of set bits and the bytes used."""
    count, used = c_uint64(), c_uint64()
    bad = call(data, len(data), bits, *into, byref(count), byref(used))
    if bad:
        raise error(bad, bits)
    return count.value, used.value


def decode_index(data: Bytes, bits: int, words: Words) -> tuple[int, int]:
    return _read(_decode, data, bits, words)


def measure_index(data: Bytes, bits: int) -> tuple[int, int]:
    return _read(_measure, data, bits)


def decode_positions(data: Bytes, bits: int, room: int) -> tuple[Ints, int]:
    at = np.empty(min(room, bits), np.int64)
    count, used = _read(_positions, data, bits, at, len(at))
    return at[:count], used
