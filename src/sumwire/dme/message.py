"""The bytes of one encoded vector: enough to decode it, and to notice when that must not be done.

    uint32 fingerprint of the scheme | uint8 flags | varints: dimensions, each length, round, rank | body | CRC-32C

Varints hold 7 bits a byte, least significant first, the top bit set in all but the last. The CRC is of
everything before it. Numbers are little-endian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.base import MAX_ROUND, Shape
from sumwire.errors import FrameError, InputError, MismatchError
from sumwire.kernels.checksum import crc32c

LIFTED = 1
"""Flag: the vector was so small that it was encoded 2**64 times larger."""

MAX_SIZE = 1 << 31
"""Coordinates: counters of the random numbers have 32 bits, indices of levels 16."""

MAX_DIMENSIONS = 32
"""As in every NumPy."""

MAX_RANK = (1 << 32) - 1

_FLAGS = 4
_FIXED = _FLAGS + 1 + 4


Body: TypeAlias = memoryview


def to_bytes(
    shape: Shape, round_id: int, rank: int, flags: int, body: Sequence[NDArray[Any]], fingerprint: int
) -> bytes:
    """The message whose body is these arrays, one after the other."""
    numbers = b"".join(map(_varint, (len(shape), *shape, round_id, rank)))
    front = np.frombuffer(fingerprint.to_bytes(4, "little") + bytes([flags]) + numbers, np.uint8)
    pieces = [front, *(array.reshape(-1).view(np.uint8) for array in body)]
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return b"".join([*(piece.data for piece in pieces), crc.to_bytes(4, "little")])


@dataclass(frozen=True)
class Message:
    """What one `encode` had to say."""

    shape: Shape
    round_id: int
    rank: int
    flags: int
    body: Body

    @classmethod
    def parse(
        cls, data: bytes | bytearray | memoryview, fingerprint: int, scheme: object, max_size: int = MAX_SIZE
    ) -> Message:
        """The message in these bytes, if they are whole, of this scheme, and of no larger vector than this."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InputError(f"decode takes bytes, not {type(data).__name__}")
        if isinstance(data, memoryview) and not data.contiguous:
            raise InputError("decode takes bytes that lie together, not a strided memoryview: make bytes of it")
        data = memoryview(data).cast("B")
        if len(data) < _FIXED:
            raise FrameError(f"{len(data)} bytes are too few for a message: the shortest has {_FIXED + 3}")
        crc = int.from_bytes(data[-4:], "little")
        if crc32c(np.frombuffer(data, np.uint8)[:-4]) != crc:
            raise FrameError("the checksum does not match: the message was damaged or cut off on its way")
        if int.from_bytes(data[:_FLAGS], "little") != fingerprint:
            raise MismatchError(f"the message is not of {scheme!r}: both sides must use the same scheme and options")
        reader = _Reader(data[:-4], _FLAGS + 1)
        dimensions = reader.number(MAX_DIMENSIONS, "dimensions")
        shape = tuple(reader.number(MAX_SIZE, "length") for _ in range(dimensions))
        if math.prod(length for length in shape if length) > max_size:  # NumPy wants that even of empty arrays
            raise FrameError(f"shape {shape} has over {max_size} coordinates: more than this receiver takes")
        round_id, rank = reader.number(MAX_ROUND, "round"), reader.number(MAX_RANK, "rank")
        if data[_FLAGS] & ~LIFTED:
            raise FrameError(f"flags {data[_FLAGS]:#04x} hold unknown ones: the sender's release is newer")
        return cls(shape, round_id, rank, data[_FLAGS], data[reader.at : -4])


def overhead(size: int) -> int:
    """Bytes beside the body, for a vector (one dimension) and a rank and round below 128.

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
                raise FrameError(f"the message ends within its {name}, or that is longer than 64 bits")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if byte == 0 and shift > 7:
            raise FrameError(f"the message's {name} is longer than it must be: no encoder writes that")
        if value > limit:
            raise FrameError(f"{name} {value} is over the limit of {limit}")
        return value
