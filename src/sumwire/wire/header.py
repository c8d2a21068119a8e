"""The 72 bytes before every frame's body: their layout. docs/format.md has the table, limits.py checks it."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from functools import cached_property

from sumwire.errors import FrameError
from sumwire.wire import limits
from sumwire.wire.limits import VERSION, Kind, Tag

if sys.byteorder != "little":
    raise ImportError("sumwire.wire needs a little-endian host: scales and lanes go to the wire as they lie in memory")

MAGIC = b"SUMW"

_FIELDS = struct.Struct("<4sBBBBHHI8sQQQIIQI")
_CRC = struct.Struct("<I")

_KINDS = {int(kind): kind for kind in Kind}
_PREFIXES = {int(tag): tag.prefix for tag in Tag}

CRC_OFFSET = _FIELDS.size
HEADER_SIZE = _FIELDS.size + _CRC.size
"""Bytes. A multiple of 8, so that a body is aligned when its frame is."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """A header whose fields are within their limits; the CRC is checked with the body, by `parse`.

    >>> header = Header(kind=Kind.TERMS, family="lattice-0123456789abcdef", size=64, hi=1, length=4)
    >>> Header.unpack(header.pack() + bytes(4)) == header
    True
    """

    kind: Kind
    family: str
    """Of the sender's codec: equal names, addable payloads."""
    size: int
    """Coordinates of the whole tensor."""
    lo: int = 0
    hi: int
    """The body holds blocks (Sparse: shards) lo..hi of the tensor, hi excluded."""
    length: int
    """Bytes of the body."""
    round_id: int = 0
    bits: int = 0
    """Payload of a Lattice: index bits per coordinate, on average, which picks widths. Of a Sparse: dtype of values."""
    rank: int = 0
    """Payload: its sender."""
    count: int = 0
    """How many payloads the body holds: 0 in terms, 1 in a payload, the most of any block or shard in a sum."""
    digest: int = 0
    """Payload and sum: of the terms they were made under."""
    flags: int = 0

    def __post_init__(self) -> None:
        limits.check(self)

    @cached_property
    def tag(self) -> Tag:
        """The codec, as its number on the wire."""
        return Tag.of(self.family)

    def pack(self) -> bytes:
        """The header but for its last four bytes, the CRC.

        >>> Header(kind=Kind.TERMS, family="lattice-0123456789abcdef", size=0, hi=0, length=0).pack()[:8]
        b'SUMW\\x01\\x01\\x01\\x00'
        """
        return _FIELDS.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.tag,
            self.bits,
            self.flags,
            self.rank,
            self.count,
            bytes.fromhex(self.family.removeprefix(self.tag.prefix)),
            self.round_id,
            self.size,
            self.digest,
            self.lo,
            self.hi,
            self.length,
            0,
        )

    @staticmethod
    def unpack(data: bytes | memoryview) -> Header:
        """Read a header; `FrameError` names the first field that is wrong.

        >>> Header.unpack(b"HTTP" + bytes(68))
        Traceback (most recent call last):
        sumwire.errors.FrameError: magic b'HTTP' is not b'SUMW': this is not a Sumwire frame
        """
        if len(data) < HEADER_SIZE:
            raise FrameError(f"frame is truncated: {len(data)} bytes, its header alone has {HEADER_SIZE}; read on")
        (magic, version, kind, codec, bits, flags, rank, count, fingerprint, *rest, zeros) = _FIELDS.unpack_from(data)
        round_id, size, digest, lo, hi, length = rest
        if magic != MAGIC:
            raise FrameError(f"magic {magic!r} is not {MAGIC!r}: this is not a Sumwire frame")
        if version != VERSION:
            raise FrameError(f"wire version {version} is not {VERSION}: run the same release at both ends")
        if kind not in _KINDS:
            raise FrameError(f"kind {kind} is not {_one_of(Kind)}")
        if codec not in _PREFIXES:
            raise FrameError(f"codec tag {codec} is not {_one_of(Tag)}")
        if zeros:
            raise FrameError(f"reserved bytes hold {zeros:#x}: they must be 0 in version {VERSION}")
        return Header(
            kind=_KINDS[kind],
            family=_PREFIXES[codec] + fingerprint.hex(),
            size=size,
            lo=lo,
            hi=hi,
            length=length,
            round_id=round_id,
            bits=bits,
            rank=rank,
            count=count,
            digest=digest,
            flags=flags,
        )


def _one_of(known: type[Kind] | type[Tag]) -> str:
    *most, last = (f"{each.value} ({each.name.lower()})" for each in known)
    return f"{', '.join(most)} or {last}"


def read_crc(data: bytes | memoryview) -> int:
    """The CRC that a header claims.

    >>> read_crc(bytes(CRC_OFFSET) + write_crc(7))
    7
    """
    crc: int = _CRC.unpack_from(data, CRC_OFFSET)[0]
    return crc


def write_crc(crc: int) -> bytes:
    """The last four bytes of a header.

    >>> write_crc(0xE3069283).hex()
    '839206e3'
    """
    return _CRC.pack(crc)
