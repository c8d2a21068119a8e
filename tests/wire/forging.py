"""Frames with other fields or bodies, and a CRC that matches."""

from __future__ import annotations

import struct

import numpy as np

from sumwire.kernels.hashing import crc32c
from sumwire.wire.header import HEADER_SIZE

# By docs/format.md, not by the code's own layout: name -> (offset, struct format).
FIELDS = {
    "magic": (0, "4s"),
    "version": (4, "B"),
    "kind": (5, "B"),
    "codec": (6, "B"),
    "bits": (7, "B"),
    "flags": (8, "H"),
    "rank": (10, "H"),
    "count": (12, "I"),
    "fingerprint": (16, "8s"),
    "round_id": (24, "Q"),
    "size": (32, "Q"),
    "digest": (40, "Q"),
    "lo": (48, "I"),
    "hi": (52, "I"),
    "length": (56, "Q"),
    "reserved": (64, "I"),
    "crc": (68, "I"),
}


def read_field(raw: bytes, name: str) -> int | bytes:
    offset, form = FIELDS[name]
    value: int | bytes = struct.unpack_from("<" + form, raw, offset)[0]
    return value


def forge(raw: bytes, *, body: bytes | None = None, fix_crc: bool = True, **fields: int | bytes) -> bytes:
    """The frame with other fields, or another body (its length follows), and a matching CRC."""
    out = bytearray(raw)
    if body is not None:
        out[HEADER_SIZE:] = body
        fields = {"length": len(body), **fields}
    for name, value in fields.items():
        offset, form = FIELDS[name]
        struct.pack_into("<" + form, out, offset, value)
    if fix_crc and len(out) >= HEADER_SIZE:
        crc = crc32c(np.frombuffer(out, np.uint8)[: HEADER_SIZE - 4])
        crc = crc32c(np.frombuffer(out, np.uint8)[HEADER_SIZE:], crc)
        struct.pack_into("<I", out, HEADER_SIZE - 4, crc)
    return bytes(out)
