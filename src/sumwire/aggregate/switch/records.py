"""The structures of `bpf/frame.h` that user space writes to and reads from BPF maps; a test compares their sizes."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.protocol.packet import BODY_9000
from sumwire.aggregate.protocol.table import LookupTable

PADDED = 1
"""Flag of a job: requests are as long as results."""

JOB = np.dtype(
    [
        ("key", "<u8"),
        ("reply_key", "<u8"),
        ("deadline", "<u8"),
        ("session", "<u4"),
        ("address", "V4"),
        ("port", ">u2"),
        ("headroom", "<u2"),
        ("workers", "u1"),
        ("quorum", "u1"),
        ("channels", "u1"),
        ("flags", "u1"),
        ("first_slot", "<u4"),
        ("slots", "<u4"),
        ("body", "<u2"),
        ("index", "<u2"),
        ("zero", "<u4"),
    ]
)

PEER = np.dtype(
    [
        ("address", "V4"),
        ("ifindex", "<u4"),
        ("port", ">u2"),
        ("mac", "V6"),
        ("fixed_ifindex", "<u4"),
        ("reserved", "<u4"),
    ]
)

TABLE = np.dtype(
    [
        ("bits", "u1"),
        ("lane", "u1"),
        ("bytes", "u1"),
        ("words", "u1"),
        ("shift", "u1"),
        ("per_word", "u1"),
        ("reserved", "V2"),
        ("spread", "<u8", (256 * 4,)),
        ("short_spread", "<u2", (256,)),
    ]
)

SLOT = np.dtype(
    [
        ("lock", "<u4"),
        ("unused", "<u4"),
        ("session", "<u4"),
        ("chunk", "<u4"),
        ("members", "<u8"),
        ("begun", "<u8"),
        ("tag", "<u4"),
        ("count", "<u2"),
        ("result", "<u2"),
        ("op", "u1"),
        ("lane", "u1"),
        ("complete", "u1"),
        ("arrived", "u1"),
        ("per_word", "u1"),
        ("reserved", "V3"),
        ("sum", "<u8", (BODY_9000 // 8,)),
    ]
)

IMPAIRMENT = np.dtype(
    [
        ("loss", "<u4"),
        ("duplicate", "<u4"),
        ("reorder", "<u4"),
        ("reserved", "<u4"),
        ("lost", "<u8"),
        ("doubled", "<u8"),
        ("reordered", "<u8"),
    ]
)


class Counter(IntEnum):
    """What became of a worker's packets."""

    MERGED = 0
    DUPLICATES = 1
    LATE = 2
    EXPIRIES = 3
    MISMATCHES = 4
    STALES = 5
    POLLS = 6
    COMPLETED = 7
    DEADLINES = 8
    BYTES_IN = 9
    BYTES_OUT = 10
    REPLY_FAILURES = 11
    LANES = 12


class Refusal(IntEnum):
    """Why a packet passed untouched."""

    FOREIGN = 0
    MALFORMED = 1
    OVERSIZED = 2
    WRONG_VERSION = 3
    UNKNOWN_JOB = 4
    WRONG_KEY = 5
    WRONG_PEER = 6
    CONTROL = 7
    OVERFLOWS = 8


def table_record(table: LookupTable) -> NDArray[Any]:
    """A table as aggregators look indices up in it."""
    record, spread = np.zeros(1, TABLE), table.spread.reshape(-1)
    record["bits"], record["lane"], record["per_word"] = table.bits, table.lane, table.lanes_per_word
    record["bytes"], record["words"] = table.bytes_per_word, table.words_per_byte
    record["shift"] = 8 // table.bits * table.lane if table.bytes_per_word > 1 else 0
    record["spread"][0, : len(spread)] = spread
    if (table.bytes_per_word, int(record["shift"][0])) == (4, 16):
        record["short_spread"] = spread
    return record
