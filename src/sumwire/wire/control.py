"""Control messages: what worker and aggregator say to each other beside frames.

    "SUMC" | version uint8 | kind uint8 | reserved uint16 | length uint32 | CRC-32C uint32 | body

The body is a JSON object, or for AGREED a terms frame. The CRC is of the 12 bytes before it and the body. Limits are
checked before anything is read or built.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from sumwire.codec.algebra import MAX_ROUND, MAX_WORKERS
from sumwire.errors import FrameError
from sumwire.kernels.hashing import crc32c
from sumwire.wire.limits import MAX_BODY
from sumwire.wire.messages import (
    Abstain,
    Agreed,
    Ask,
    Control,
    Describe,
    Expired,
    Failed,
    Hello,
    Holds,
    Measured,
    Ping,
    Pong,
    Refused,
    Status,
    Welcome,
    Which,
    Word,
)

__all__ = [
    "Abstain",
    "Agreed",
    "Ask",
    "Control",
    "Describe",
    "Expired",
    "Failed",
    "Hello",
    "Holds",
    "Measured",
    "Ping",
    "Pong",
    "Refused",
    "Status",
    "Welcome",
    "Which",
    "Word",
    "read",
    "read_length",
    "read_ranks",
    "to_bytes",
    "write_ranks",
]

MAGIC = b"SUMC"
VERSION = 3
MAX_JSON = 1 << 16
MAX_TEXT = 1 << 14
"""Characters: enough for a bit of each of `MAX_WORKERS`."""
MAX_LIST = 4096
MAX_REASON = 1024
"""Characters of an error that are told to others."""

_FRONT = struct.Struct("<4sBBHI")
CONTROL_SIZE = _FRONT.size + 4

_JSON: tuple[type[Any], ...] = (
    Hello, Welcome, Describe, Abstain, Expired, Holds, Failed, Ask, Status, Measured, Which, Ping, Pong, Refused,
)  # fmt: skip
_BY_WORD = {kind.word: kind for kind in _JSON}


def to_bytes(control: Control) -> bytes:
    """A control message as it is sent.

    >>> read(to_bytes(Refused("no such job")))
    Refused(reason='no such job')
    """
    body = bytes(control.frame) if isinstance(control, Agreed) else json.dumps(vars(control)).encode()
    front = _FRONT.pack(MAGIC, VERSION, control.word, 0, len(body))
    return front + struct.pack("<I", _crc(front, body)) + body


def read_length(front: bytes | memoryview, *, max_body: int = MAX_BODY) -> int:
    """Bytes of the body that follows these `CONTROL_SIZE` bytes, if they can be the front of a message."""
    magic, version, word, reserved, length = _FRONT.unpack_from(front)
    if magic != MAGIC:
        raise FrameError(f"magic {magic!r} is not {MAGIC!r}: this is not a control message")
    if version != VERSION:
        raise FrameError(f"control version {version} is not {VERSION}: run the same release at both ends")
    if word not in tuple(Word) or reserved:
        raise FrameError(f"control word {word} is unknown, or its reserved bytes are not 0")
    limit = max_body if word == Word.AGREED else MAX_JSON
    if length > limit:
        raise FrameError(f"a control message of {length} bytes is over the limit of {limit}")
    return int(length)


def read(data: bytes | memoryview) -> Control:
    """The control message in these bytes; `FrameError` says what is wrong with others."""
    data = memoryview(data).toreadonly()
    if len(data) < CONTROL_SIZE or len(data) != CONTROL_SIZE + read_length(data):
        raise FrameError(f"{len(data)} bytes are not one control message")
    body = data[CONTROL_SIZE:]
    (crc,) = struct.unpack_from("<I", data, _FRONT.size)
    if crc != _crc(data[: _FRONT.size], body):
        raise FrameError("the CRC of a control message does not match: it was damaged on its way")
    word = Word(data[5])
    if word is Word.AGREED:
        return Agreed(body)
    message: Control = _from_json(_BY_WORD[word], bytes(body))
    return message


def write_ranks(ranks: Iterable[int], workers: int) -> str:
    """Ranks as a bit each, in hexadecimal.

    >>> write_ranks({0, 9}, 10), sorted(read_ranks("0102"))
    ('0102', [0, 9])
    """
    bits = np.zeros(workers, np.uint8)
    bits[list(ranks)] = 1
    return np.packbits(bits, bitorder="little").tobytes().hex()


def read_ranks(text: str, workers: int = MAX_WORKERS) -> set[int]:
    """The ranks again; `FrameError` if one is not below `workers`."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise FrameError(f"ranks {text[:80]!r} are not hexadecimal") from None
    ranks: set[int] = set(np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")).tolist())
    if ranks and max(ranks) >= workers:
        raise FrameError(f"rank {max(ranks)} is not in 0..{workers - 1}: no such worker")
    return ranks


def _crc(front: bytes | memoryview, body: bytes | memoryview) -> int:
    return crc32c(np.frombuffer(body, np.uint8), crc32c(np.frombuffer(front, np.uint8)))


def _from_json(kind: type[Any], body: bytes) -> Any:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise FrameError(f"the body of {kind.word.name} is not JSON") from None
    if not isinstance(values, dict) or set(values) != {f.name for f in fields(kind)}:
        raise FrameError(f"{kind.word.name} has other fields than it must")
    for f in fields(kind):
        _check_field(kind.word, f.name, str(f.type), values[f.name])
    return kind(**values)


_WORD = (1 << 32) - 1
_LIMITS = {
    "rank": MAX_WORKERS - 1,
    "workers": MAX_WORKERS,
    "span": MAX_WORKERS,
    "round_id": MAX_ROUND,
    "next_round": MAX_ROUND,
    "first_round": MAX_ROUND,
    "position": MAX_ROUND,
    "proposed": 1,
}


def _check_field(word: Word, name: str, kind: str, value: Any) -> None:
    if kind == "str":
        # JSON can spell halves of characters, which nobody can encode again.
        good = isinstance(value, str) and len(value) <= MAX_TEXT and not re.search("[\ud800-\udfff]", value)
    elif kind == "int":
        good = type(value) is int and 0 <= value <= _LIMITS.get(name, _WORD)
    elif kind == "float":
        good = type(value) is float and 0 <= value < math.inf
    elif kind == "list[int]":
        good = isinstance(value, list) and len(value) <= MAX_LIST
        good = good and all(type(v) is int and 0 <= v <= _WORD for v in value)
    else:
        good = isinstance(value, dict)
    if not good:
        shown = "" if name == "token" else f": {str(value)[:80]!r}"  # what is said here gets into logs
        raise FrameError(f"{name} of {word.name} is not what it must be{shown}")
