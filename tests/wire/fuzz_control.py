"""Control messages with odd fields and right checksums: refused with an error of ours, or read as they were written."""

from __future__ import annotations

import json
import math
import random
import struct
from copy import deepcopy
from dataclasses import fields
from typing import Any, get_args

import numpy as np

from sumwire import Lattice, Sketch, Sparse
from sumwire.codec.rows.codec import Rows
from sumwire.codec.snapshot import Snapshot
from sumwire.kernels.hashing import crc32c
from sumwire.wire import control
from sumwire.wire.control import Word
from sumwire.wire.frame import build, describe, parse

_BY_TYPE: dict[str, Any] = {
    "str": "0102",
    "int": 1,
    "float": 0.5,
    "list[int]": [1, 2],
    "dict[str, Any]": {"workers": 2},
}

_ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 4.0, 0.5, -0.0, 2**32, 2**53 + 1, 2**64, 10**400, 1e308, math.inf, math.nan),
    *("", "a", "\ud800", "\0", "é" * 9, "f" * 20_000, "energy", "optimal"),
    *([], [[]], [1, -1], [2**40], [0, 4], list(range(5000)), {}, {"a": {}}),
]


def messages() -> list[dict[str, Any]]:
    """One of each kind that is JSON, and a CODEC for each codec: the word, then the fields."""
    kinds = [kind for kind in get_args(control.Control) if kind is not control.Agreed]
    plain = [kind(**{f.name: _BY_TYPE[str(f.type)] for f in fields(kind)}) for kind in kinds]
    several = (Lattice(2), Lattice(2, 3, widths=(0, 1, 3)), Sparse(2), Sketch(2), Rows(2), Snapshot(2))
    codecs = [describe(codec) for codec in several]
    return [{"": int(message.word), **vars(message)} for message in [*plain, *codecs, *codecs]]


def seal(word: int, body: bytes) -> bytes:
    """The message around a body, by docs/server.md rather than by the code."""
    front = struct.pack("<4sBBHI", b"SUMC", 3, word, 0, len(body))
    crc = crc32c(np.frombuffer(body, np.uint8), crc32c(np.frombuffer(front, np.uint8)))
    return front + struct.pack("<I", crc) + body


def mutate(rng: random.Random, message: dict[str, Any]) -> bytes:
    """The message with one to three odd fields."""
    message = json.loads(json.dumps(message))
    word = message.pop("")
    for _ in range(rng.choice([1, 1, 2, 3])):
        inner = message.get("options")
        at = inner if isinstance(inner, dict) and inner and rng.random() < 0.8 else message
        _change(rng, at)
    if rng.random() < 0.05:
        word = rng.choice(list(Word))
    text = json.dumps(message)
    if rng.random() < 0.1:
        cut = rng.randrange(len(text))
        text = text[:cut] + rng.choice(["", "[" * 5000, '{"a":' * 5000, "}", "1e999", '"\\ud800"']) + text[cut + 1 :]
    return seal(word, text.encode("utf-8", "surrogatepass"))


def _change(rng: random.Random, fields: dict[str, Any]) -> None:
    name = rng.choice(list(fields) or ["a"])
    way = rng.random()
    if way < 0.85:
        fields[name] = deepcopy(rng.choice(_ODD))  # which later changes must not change
    elif way < 0.95:
        fields.pop(name, None)
    else:
        fields[rng.choice(["a", "", name + " "])] = 1


def read(raw: bytes) -> str:
    """Read it, write it again, and use it as a server would; says what it was."""
    message = control.read(raw)
    again = control.to_bytes(message)
    assert control.to_bytes(control.read(again)) == again
    if isinstance(message, control.Describe):
        codec = build(message)
        assert codec.family == message.family
        assert build(describe(codec)) == codec
    elif isinstance(message, control.Expired):
        control.read_ranks(message.ranks)
    elif isinstance(message, control.Agreed):
        parse(bytes(message.frame))
    return f"control {message.word.name}".lower()
