"""Packets of in-network aggregation. `bpf/frame.h` defines them; a test compares."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import astuple, dataclass
from enum import IntEnum

from sumwire.errors import FrameError

MAGIC = 0x504D5553
VERSION = 1
PORT = 4660

HEADER = 48
OUTER = 28
"""Bytes of the IPv4 and UDP headers."""
GRAIN = 64
"""Bodies of results have a multiple of this many bytes."""
BODY_1500 = 1408
BODY_9000 = 8896
BODY_XDP = 3392

MAX_JOBS = 64
MAX_WORKERS = 64
MAX_CHANNELS = 4
MAX_TABLES = 32
MAX_SLOTS = 4096
MAX_COUNT = 65535
EVERYONE = 255

_HEADER = struct.Struct("<IBBBBHBBHHQIIIHHQ")


class PacketKind(IntEnum):
    """What a packet is."""

    HELLO = 1
    WELCOME = 2
    TABLE = 3
    REFUSED = 4
    MERGE = 5
    POLL = 6
    RESULT = 7
    WAITING = 8
    EXPIRED = 9
    MISMATCH = 10
    STALE = 11


class Operation(IntEnum):
    """How bodies are merged."""

    LOOKUP = 1
    ADD8 = 2
    ADD16 = 3
    ADD32 = 4
    ADD64 = 5
    MAX32 = 6
    MAX64 = 7
    OR = 8


@dataclass(frozen=True, kw_only=True)
class PacketHeader:
    """The first 48 bytes of a packet."""

    kind: int
    op: int = 0
    table: int = 0
    job: int = 0
    worker: int = 0
    channel: int = 0
    length: int = 0
    result: int = 0
    key: int = 0
    session: int = 0
    chunk: int = 0
    tag: int = 0
    count: int = 0
    members: int = 0

    def pack(self) -> bytes:
        """
        >>> len(PacketHeader(kind=PacketKind.HELLO).pack())
        48
        """
        *front, members = astuple(self)
        return _HEADER.pack(MAGIC, VERSION, *front, 0, members)

    @classmethod
    def unpack(cls, data: bytes) -> PacketHeader:
        """The header of a datagram, whose body must be whole; raises `FrameError` if it is no packet of ours."""
        if len(data) < HEADER:
            raise FrameError(f"packet: {len(data)} bytes, a header has {HEADER}")
        magic, version, kind, op, table, job, worker, channel, length, result, *rest = _HEADER.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise FrameError(f"packet: magic {magic:#x} and version {version}, not {MAGIC:#x} and {VERSION}")
        if HEADER + length > len(data):
            raise FrameError(f"packet: a body of {length} bytes in a datagram of {len(data)}")
        key, session, chunk, tag, count, _, members = rest
        return cls(
            kind=kind,
            op=op,
            table=table,
            job=job,
            worker=worker,
            channel=channel,
            length=length,
            result=result,
            key=key,
            session=session,
            chunk=chunk,
            tag=tag,
            count=count,
            members=members,
        )


def keys_of(secret: str) -> tuple[int, int]:
    """A job's key and reply key, from the secret that its workers and the aggregator share.

    Replies have a key of their own, so that whoever sees only results cannot send requests.

    >>> keys_of("a-long-random-word") == keys_of("a-long-random-word") != keys_of("another")
    True
    """
    digest = hashlib.blake2b(secret.encode(), digest_size=16, person=b"sumwire packets").digest()
    key, reply = struct.unpack("<QQ", digest)
    return key, reply
