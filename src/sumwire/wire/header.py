"""The 72 bytes before every frame's body: layout, limits, and one refusal per way to break them.

docs/format.md has the table. Every field is checked here before anybody allocates from it.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from enum import IntEnum

from sumwire.codec.base import MAX_ROUND, MAX_WORKERS
from sumwire.codec.lattice_checks import MIN_BLOCK
from sumwire.errors import FrameError
from sumwire.kernels.scheme import MAX_BITS

if sys.byteorder != "little":
    raise ImportError("sumwire.wire needs a little-endian host: scales and lanes go to the wire as they lie in memory")

MAGIC = b"SUMW"
VERSION = 1
CODEC_LATTICE = 1

FLAG_COUNTS = 1
"""The body of a sum begins with a count for each block."""

KNOWN_FLAGS = FLAG_COUNTS

MAX_BODY = 1 << 32
"""Bytes. A frame is read into one buffer, so its header must not ask for all memory; parts are smaller."""

MAX_BLOCKS = MAX_BODY // 4
"""Terms are never split: the scales of all blocks must fit one body."""

MAX_SIZE = MAX_BLOCKS * MIN_BLOCK
"""Coordinates: no codec can cut more into MAX_BLOCKS blocks if its blocks are the smallest."""

MAX_COUNT = (1 << 31) - 1
"""Payloads in a sum: counts are int32 in memory."""

_FIELDS = struct.Struct("<4sBBBBHHI8sQQQIIQI")
_CRC = struct.Struct("<I")
_FAMILY = "lattice-"
_WORD = (1 << 64) - 1

CRC_OFFSET = _FIELDS.size
HEADER_SIZE = _FIELDS.size + _CRC.size
"""Bytes. A multiple of 8, so that a body is aligned when its frame is."""


class Kind(IntEnum):
    """What a frame carries.

    >>> Kind(2).name
    'PAYLOAD'
    """

    TERMS = 1
    PAYLOAD = 2
    SUM = 3


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
    """The body holds blocks lo..hi of the tensor, hi excluded."""
    length: int
    """Bytes of the body."""
    round_id: int = 0
    bits: int = 0
    """Payload: index bits a coordinate that its sender spends on average, which picks its widths."""
    rank: int = 0
    """Payload: its sender."""
    count: int = 0
    """How many payloads the body holds: 0 in terms, 1 in a payload, the most of any block in a sum."""
    digest: int = 0
    """Payload and sum: of the terms they were made under."""
    flags: int = 0

    def __post_init__(self) -> None:
        _check_limits(self)
        _check_kind(self)

    def pack(self) -> bytes:
        """The header but for its last four bytes, the CRC.

        >>> Header(kind=Kind.TERMS, family="lattice-0123456789abcdef", size=0, hi=0, length=0).pack()[:8]
        b'SUMW\\x01\\x01\\x01\\x00'
        """
        return _FIELDS.pack(
            MAGIC,
            VERSION,
            self.kind,
            CODEC_LATTICE,
            self.bits,
            self.flags,
            self.rank,
            self.count,
            bytes.fromhex(self.family.removeprefix(_FAMILY)),
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
        if kind not in tuple(Kind):
            raise FrameError(f"kind {kind} is not 1 (terms), 2 (payload) or 3 (sum)")
        if codec != CODEC_LATTICE:
            raise FrameError(f"codec tag {codec} is not {CODEC_LATTICE} (lattice), the only one of version {VERSION}")
        if zeros:
            raise FrameError(f"reserved bytes hold {zeros:#x}: they must be 0 in version {VERSION}")
        return Header(
            kind=Kind(kind),
            family=_FAMILY + fingerprint.hex(),
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


def _check_limits(header: Header) -> None:
    """Refuse what no frame may hold."""
    if header.flags & ~KNOWN_FLAGS:
        raise FrameError(
            f"flags {header.flags:#06x} has bits unknown to version {VERSION}: {KNOWN_FLAGS:#06x} are known"
        )
    if not 0 <= header.size <= MAX_SIZE:
        raise FrameError(f"size {header.size} is not in 0..{MAX_SIZE} coordinates: split the tensor")
    if not 0 <= header.hi <= MAX_BLOCKS:
        raise FrameError(f"block range ends at hi={header.hi}, the limit is {MAX_BLOCKS}: use larger blocks")
    if not 0 <= header.lo <= header.hi:
        raise FrameError(f"block range {header.lo}..{header.hi} has lo > hi: it must not run backwards")
    if header.hi > header.size:
        raise FrameError(f"block range ends at hi={header.hi}, but size {header.size} cannot have so many blocks")
    if not 0 <= header.length <= MAX_BODY:
        raise FrameError(f"body length {header.length} is over the limit of {MAX_BODY} bytes: send it in parts")
    if not 0 <= header.count <= MAX_COUNT:
        raise FrameError(f"count {header.count} is not in 0..{MAX_COUNT} payloads")
    if not 0 <= header.round_id <= MAX_ROUND:
        raise FrameError(f"round_id {header.round_id} is not in 0..2**64-1")
    if not 0 <= header.digest <= _WORD:
        raise FrameError(f"terms digest {header.digest} is not in 0..2**64-1")


def _check_kind(header: Header) -> None:
    """Refuse what this kind of frame may not hold: fields that it does not use are 0."""
    kind, name = header.kind, header.kind.name.lower()
    if header.bits > MAX_BITS or (header.bits > 0) != (kind is Kind.PAYLOAD):
        raise FrameError(f"bits {header.bits} is wrong in a {name} frame: 1..{MAX_BITS} in a payload, else 0")
    if not 0 <= header.rank < (MAX_WORKERS if kind is Kind.PAYLOAD else 1):
        raise FrameError(f"rank {header.rank} is wrong in a {name} frame: 0..{MAX_WORKERS - 1} in a payload, else 0")
    if header.flags & FLAG_COUNTS and kind is not Kind.SUM:
        raise FrameError(f"flags {header.flags:#06x} announces counts in a {name} frame: only sums have them")
    if kind is not Kind.SUM and header.count != (kind is Kind.PAYLOAD):
        raise FrameError(f"count {header.count} is wrong in a {name} frame: 0 in terms, 1 in a payload")
    if kind is Kind.TERMS and header.digest:
        raise FrameError(f"terms digest {header.digest:#x} in a terms frame must be 0")
    if kind is Kind.TERMS and header.lo:
        raise FrameError(f"block range of terms begins at lo={header.lo}: terms are never split, send all blocks")
    counts = 4 * (header.hi - header.lo)
    if kind is Kind.TERMS and header.length != counts:
        raise FrameError(
            f"body length {header.length} of terms is not {counts}: 4 bytes for each of {header.hi} blocks"
        )
    if header.flags & FLAG_COUNTS and header.length < counts:
        raise FrameError(f"body length {header.length} is too short: the counts alone have {counts} bytes")
