"""The bytes of one encoded vector: all that decoding needs, with checks against damage and mismatch.

    uint32 fingerprint of the scheme | uint8 flags | varints: dimensions, each length, round, rank | body | CRC-32C

Varints hold 7 bits per byte, least significant first, with the top bit set in all bytes but the last. The CRC covers
everything before it. Numbers are little-endian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import MAX_ROUND, Shape
from sumwire.errors import FrameError, InputError, MismatchError
from sumwire.kernels.hashing import crc32c

SCALED = 1
"""Flag: the vector was multiplied by 2**64 before encoding, because it was very small."""

MAX_SIZE = 1 << 31
"""Maximum number of coordinates: random numbers have 32-bit counters."""

MAX_DIMENSIONS = 32
"""The limit of older NumPy releases."""

MAX_RANK = (1 << 32) - 1

_FLAGS = 4
_FIXED = _FLAGS + 1 + 4


Body: TypeAlias = memoryview


def to_bytes(
    shape: Shape, round_id: int, rank: int, flags: int, body: Sequence[NDArray[np.generic]], fingerprint: int
) -> bytes:
    """The message whose body is the concatenation of these arrays."""
    numbers = b"".join(map(_varint, (len(shape), *shape, round_id, rank)))
    front = np.frombuffer(fingerprint.to_bytes(4, "little") + bytes([flags]) + numbers, np.uint8)
    pieces = [front, *(array.reshape(-1).view(np.uint8) for array in body)]
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return b"".join([*(piece.data for piece in pieces), crc.to_bytes(4, "little")])


@dataclass(frozen=True)
class Message:
    """The fields of a message."""

    shape: Shape
    round_id: int
    rank: int
    flags: int
    body: Body

    @classmethod
    def parse(
        cls, data: bytes | bytearray | memoryview, fingerprint: int, scheme: object, max_size: int = MAX_SIZE
    ) -> Message:
        """Parse and check a message of the scheme with this fingerprint; `scheme` appears in errors."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InputError(f"decode takes bytes, not {type(data).__name__}")
        if isinstance(data, memoryview) and not data.contiguous:
            raise InputError("decode takes contiguous bytes, not a strided memoryview: convert it with bytes(...)")
        data = memoryview(data).cast("B")
        if len(data) < _FIXED:
            raise FrameError(f"{len(data)} bytes are too few for a message: the shortest has {_FIXED + 3}")
        crc = int.from_bytes(data[-4:], "little")
        if crc32c(np.frombuffer(data, np.uint8)[:-4]) != crc:
            raise FrameError("the checksum does not match: the message was damaged or truncated in transit")
        if int.from_bytes(data[:_FLAGS], "little") != fingerprint:
            raise MismatchError(
                f"the message was not encoded by {scheme!r}: both sides must use the same scheme and options"
            )
        reader = _Reader(data[:-4], _FLAGS + 1)
        dimensions = reader.number(MAX_DIMENSIONS, "dimensions")
        shape = tuple(reader.number(MAX_SIZE, "length") for _ in range(dimensions))
        if math.prod(length for length in shape if length) > max_size:  # NumPy applies this limit to empty arrays, too
            raise FrameError(
                f"shape {shape} has over {max_size} coordinates, the limit of this receiver: raise max_size"
            )
        round_id, rank = reader.number(MAX_ROUND, "round"), reader.number(MAX_RANK, "rank")
        if data[_FLAGS] & ~SCALED:
            raise FrameError(f"flags {data[_FLAGS]:#04x} has unknown flags: the sender uses a newer release")
        return cls(shape, round_id, rank, data[_FLAGS], data[reader.at : -4])


def check_length(body: Body, expected: int) -> None:
    """Raise `FrameError` unless the body has the expected length; called before memory is allocated for it."""
    if len(body) != expected:
        raise FrameError(f"the body has {len(body)} bytes, but {expected} were expected: the message is malformed")


def overhead(size: int) -> int:
    """Bytes of a message without its body, for one dimension and a rank and round below 128.

    >>> overhead(1024)
    14
    """
    return _FIXED + len(_varint(1) + _varint(size) + _varint(0) + _varint(0))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Reader:
    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at

    def number(self, limit: int, name: str) -> int:
        value = shift = 0
        while True:
            if self.at >= len(self.data) or shift > 63:
                raise FrameError(f"the message ends within its {name}, or the {name} is longer than 64 bits")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if byte == 0 and shift > 7:
            raise FrameError(f"the {name} has more bytes than needed: no encoder writes that")
        if value > limit:
            raise FrameError(f"{name} {value} is over the limit of {limit}")
        return value
