"""The structures and functions of `native/packets.h`."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_int32, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any

from sumwire.errors import ConfigError


class LinkOptions(ctypes.Structure):
    """Where a worker sends to, and what WELCOME said."""

    _fields_ = (
        ("address", c_uint32),
        ("port", c_uint16),
        ("job", c_uint16),
        ("key", c_uint64),
        ("reply_key", c_uint64),
        ("rate", c_uint64),
        ("deadline_ns", c_uint64),
        ("timeout_ns", c_uint64),
        ("session", c_uint32),
        ("window", c_uint32),
        ("body", c_uint32),
        ("worker", c_uint8),
        ("padded", c_uint8),
        ("reserved", c_uint8 * 2),
    )


class StreamRecord(ctypes.Structure):
    """A run of bytes that becomes one chunk after another."""

    _fields_ = (
        ("body", c_void_p),
        ("result", c_void_p),
        ("body_bytes", c_uint64),
        ("result_bytes", c_uint64),
        ("chunk_bytes", c_uint32),
        ("tag", c_uint32),
        ("op", c_uint8),
        ("table", c_uint8),
        ("bytes", c_uint8),
        ("words", c_uint8),
        ("absent", c_uint8),
        ("once", c_uint8),
        ("tolerant", c_uint8),
        ("reserved", c_uint8 * 5),
    )


class Outcome(ctypes.Structure):
    """Why a transfer ended without all its results."""

    _fields_ = (
        ("members", c_uint64),
        ("chunk", c_uint32),
        ("tag", c_uint32),
        ("session", c_uint32),
        ("error", c_int32),
        ("result", c_uint16),
        ("op", c_uint8),
        ("reserved", c_uint8),
    )


class LinkCounts(ctypes.Structure):
    """What a link has done so far."""

    names = ("bytes_sent", "packets_sent", "merges_again", "polls", "results", "round_trip_ns")
    _fields_ = tuple((name, c_uint64) for name in names)


class Sender(ctypes.Structure):
    """Where a control packet came from."""

    _fields_ = (("address", c_uint32), ("port", c_uint16), ("reserved", c_uint16))


class Status(IntEnum):
    """How a transfer ends."""

    DONE = 0
    BUSY = 1
    SILENT = 2
    WAITING = 3
    EXPIRED = 4
    MISMATCH = 5
    STALE = 6
    CLOSED = 7
    ERROR = 8
    REFUSED = 9


class _Functions:
    """Declared when they are first needed."""

    def __init__(self) -> None:
        from sumwire.kernels.native import Array, function

        number, link, aggregator = c_uint32, c_void_p, c_void_p
        self.link_open = function("sw_link_open", link, POINTER(LinkOptions))
        self.link_welcome = function("sw_link_welcome", None, link, POINTER(LinkOptions))
        self.link_stop = function("sw_link_stop", None, link)
        self.link_close = function("sw_link_close", None, link)
        self.link_counts = function("sw_link_read_counts", None, link, POINTER(LinkCounts))
        self.link_refusal = function("sw_link_read_refusal", number, link, Array, number)
        self.link_control = function("sw_link_control", c_int32, link, Array, number, Array, number, number)
        self.link_start = function(
            "sw_link_start", None, link, number, number, POINTER(StreamRecord), number, Array, Array
        )
        self.link_wait = function("sw_link_wait", c_int32, link, number, number, POINTER(Outcome))
        self.link_abort = function("sw_link_abort", None, link, number)
        self.open = function("sw_aggregator_open", aggregator, number, c_uint16)
        self.close = function("sw_aggregator_close", None, aggregator)
        self.port = function("sw_aggregator_port", c_int32, aggregator)
        self.begin = function("sw_aggregator_begin", None, aggregator, c_uint16, Array)
        self.peer = function("sw_aggregator_peer", None, aggregator, c_uint16, number, number)
        self.table = function("sw_aggregator_table", None, aggregator, c_uint16, number, Array)
        self.serve = function("sw_aggregator_serve", c_int32, aggregator, number, Array, number, POINTER(Sender))
        self.reply = function("sw_aggregator_reply", c_int32, aggregator, Array, number, POINTER(Sender))
        self.counters = function("sw_aggregator_counters", None, aggregator, c_uint16, Array)
        self.refusals = function("sw_aggregator_refusals", None, aggregator, Array)


@cache
def functions() -> Any:
    """The native functions; raises `ConfigError` where the library was built without them."""
    try:
        return _Functions()
    except (OSError, AttributeError):
        raise ConfigError(
            f"packets need the native library on Linux, and this is {sys.platform} or a build without a C++ compiler: "
            'use a server ("host:port") or a process group'
        ) from None
