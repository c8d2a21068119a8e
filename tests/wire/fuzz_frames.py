"""Mutations that know the format: fields and bodies change together, length and CRC are right.

What gets past the outer checks this way reaches the readers of bodies, which blind changes rarely do.
"""

from __future__ import annotations

import random
import struct

import numpy as np

from sumwire import Codec, Lattice, Sparse
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import owners
from sumwire.codec.snapshot import NOTHING, Snapshot
from sumwire.wire.header import HEADER_SIZE
from sumwire.wire.limits import Kind
from tests.wire.forging import FIELDS, forge, read_field
from tests.wire.honest import Receiver

_MEANT = ("bits", "rank", "count", "round_id", "size", "digest", "lo", "hi")
"""Fields of the header that say what the body is."""


def odd_number(rng: random.Random, now: int, bits: int) -> int:
    """Numbers that parsers trip over, near and far."""
    near = now + rng.choice([-8, -4, -2, -1, 1, 2, 4, 8])
    edge = (1 << rng.randrange(bits + 1)) - rng.randrange(2)
    return rng.choice([0, 1, near, edge, rng.getrandbits(bits)]) & ((1 << bits) - 1)


def mutate(rng: random.Random, receiver: Receiver, raw: bytes) -> bytes:
    """The frame with one to three things changed, and whatever follows from them put right."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        raw = rng.choice([_field, _kind, _refusal, _counts, _number, _number, _body])(rng, receiver.codec, raw)
    return raw


def _field(rng: random.Random, codec: Codec, raw: bytes) -> bytes:
    """Another value in the header, most often one that some frame could have."""
    name = rng.choice(_MEANT)
    bits = 8 * struct.calcsize(FIELDS[name][1])
    limit = {"rank": codec.workers, "count": codec.headroom + 1, "bits": 9}.get(name)
    now = int(read_field(raw, name))
    value = rng.randint(0, limit) if limit and rng.random() < 0.7 else odd_number(rng, now, bits)
    return forge(raw, **{name: value & ((1 << bits) - 1)})


def _kind(rng: random.Random, codec: Codec, raw: bytes) -> bytes:
    """The same body as another kind of frame, whose fields are as they must be there."""
    kind, payload = Kind(rng.choice(list(Kind))), isinstance(codec, Lattice | Sparse | Rows)
    if kind is Kind.TERMS:
        return forge(raw, kind=kind, bits=0, rank=0, count=0, digest=0, lo=0, flags=0)
    if kind is Kind.PAYLOAD:
        bits, rank = rng.randint(1, 4) if payload else 0, rng.randrange(codec.workers)
        return forge(raw, kind=kind, bits=bits, rank=rank, count=1, flags=0)
    return forge(raw, kind=kind, bits=0, rank=0, count=rng.randint(0, codec.headroom))


def _refusal(rng: random.Random, codec: Codec, raw: bytes) -> bytes:
    """Terms that refuse a tensor; sometimes with what a refusal does not have."""
    raw = forge(raw, kind=Kind.TERMS, bits=0, rank=0, count=0, digest=0, lo=0, hi=0, flags=2, body=b"")
    return rng.choice([raw, raw, forge(raw, hi=1), forge(raw, body=bytes(4)), forge(raw, size=0), forge(raw, flags=3)])


def _counts(rng: random.Random, codec: Codec, raw: bytes) -> bytes:
    """Other counts in a sum, or none."""
    blocks = max(0, min(int(read_field(raw, "hi")) - int(read_field(raw, "lo")), 64))
    body = raw[HEADER_SIZE:]
    if int(read_field(raw, "flags")) & 1:
        body = body[4 * blocks :]
    if rng.random() < 0.2:
        return forge(raw, body=body, flags=0)
    most = min(codec.headroom + rng.randrange(2), 9)
    counts = [rng.randint(0, most) for _ in range(blocks)]
    return forge(raw, body=struct.pack(f"<{blocks}I", *counts) + body, flags=1, count=max(counts, default=0))


def _number(rng: random.Random, codec: Codec, raw: bytes) -> bytes:
    """Another number in the body: a scale, a count, a word of an index, a lane, a value."""
    body = bytearray(raw[HEADER_SIZE:])
    width = rng.choice([w for w in (1, 2, 4, 8) if w <= len(body)] or [0])
    if width:
        # The front of a body is where its own sizes are.
        at = rng.randrange(min(len(body), 32) if rng.random() < 0.5 else len(body)) // width * width
        at = min(at, len(body) - width)
        now = int.from_bytes(body[at : at + width], "little")
        body[at : at + width] = odd_number(rng, now, 8 * width).to_bytes(width, "little")
    return forge(raw, body=bytes(body))


def _body(rng: random.Random, codec: Codec, raw: bytes) -> bytes:
    """A body written anew, for what the header says it is."""
    kind, body = int(read_field(raw, "kind")), raw[HEADER_SIZE:]
    if kind == Kind.TERMS and isinstance(codec, Lattice) and codec.byte_terms:
        base = rng.choice([0, 1, 22, 254, 1031, 1951, 1952, 0xFFFF])
        codes = rng.choices(rng.choice([[0], [0, 255], [0, 1, 200, 254, 255]]), k=max(0, len(body) - 2))
        return forge(raw, body=struct.pack("<H", base) + bytes(codes))
    if kind == Kind.TERMS and isinstance(codec, Lattice):
        scales = np.frombuffer(body[: len(body) // 4 * 4], np.uint32).copy()
        for _ in range(min(len(scales), 3)):
            scales[rng.randrange(len(scales))] = rng.choice(
                [0, 1, 0x3F800000, 0x79000000, 0x79000001, 0x80000000, 0x7FC00000]
            )
        return forge(raw, body=scales.tobytes())
    if kind != Kind.TERMS and isinstance(codec, Sparse):
        lo, hi = int(read_field(raw, "lo")), min(int(read_field(raw, "hi")), codec.shards)
        dealt = codec.deal(min(int(read_field(raw, "size")), 1 << 12)).bits
        itemsize = 4 if kind == Kind.SUM or int(read_field(raw, "bits")) == 1 else 2
        segments = [_segment(rng, dealt[shard], itemsize) for shard in range(lo, hi)]
        return forge(raw, body=b"".join(segments), flags=0)
    if kind != Kind.TERMS and isinstance(codec, Rows):
        lo, hi = int(read_field(raw, "lo")), min(int(read_field(raw, "hi")), codec.shards)
        itemsize = 4 if kind == Kind.SUM or int(read_field(raw, "bits")) == 1 else 2
        return forge(raw, body=b"".join(_rows(rng, codec, shard, itemsize) for shard in range(lo, hi)), flags=0)
    if kind == Kind.TERMS and isinstance(codec, Snapshot):
        numbers = rng.choice([[int(NOTHING)], [int(NOTHING), 0, -1, rng.getrandbits(31)]])
        words = rng.choices(numbers, k=len(body) // 4)
        return forge(raw, body=struct.pack(f"<{len(words)}i", *words))
    if kind == Kind.TERMS and isinstance(codec, Rows):
        size, rows = int(read_field(raw, "size")) & (1 << 40) - 1, rng.choice([0, 1, 2, 40, 60, 200, -1])
        return forge(raw, body=struct.pack("<qq", rows, size // rows if rows else rng.randrange(4)))
    if kind == Kind.TERMS or isinstance(codec, Lattice | Snapshot):
        return forge(raw, body=rng.randbytes(len(body)))
    return forge(raw, body=_escapes(rng, codec, body, total=kind == Kind.SUM))


def _segment(rng: random.Random, bits: int, itemsize: int) -> bytes:
    """A shard's entries, coded in any of the ways, whichever is the shortest; sometimes not quite."""
    share = rng.choice([0.0, 0.02, 0.3, 1.0])
    ones = sorted(j for j in range(bits) if rng.random() < share)
    mode, k, k1 = rng.randrange(6), rng.choice([0, 1, 5, 31]), rng.choice([0, 2, 31])
    flags = np.zeros(-(-bits // 64) * 64, np.uint8)
    if mode in (0, 5):
        ones = list(range(bits)) if mode else []
    flags[ones] = 1
    words = np.packbits(flags, bitorder="little")
    code = bytes([mode, 0])
    if mode == 1:
        gaps = [b - a - 1 for a, b in zip([-1, *ones], ones, strict=False)]
        code = struct.pack("<BBI", mode, k, len(ones)) + _rice([(gap, k) for gap in gaps])
    elif mode == 2:
        edges = np.flatnonzero(np.diff(flags, prepend=0, append=0)).tolist()
        turns = [(b - a, k) for a, b in zip([0, *edges], edges, strict=False)]
        turns = [
            (n, k) if even else (n - 1, k1) for even, (n, _) in zip([True, False] * len(turns), turns, strict=False)
        ]
        code = struct.pack("<BBIB", mode, k, len(ones), k1) + _rice(turns)
    elif mode == 3:
        code += words[: -(-bits // 8)].tobytes()
    elif mode == 4:
        filled = words.reshape(-1, 8).any(axis=1)
        code += np.packbits(filled, bitorder="little").tobytes() + words.reshape(-1, 8)[filled].tobytes()
    entries = len(ones) + rng.choice([0] * 18 + [-1, 1])
    return _padded(code) + _padded(rng.randbytes(max(0, entries) * itemsize))


def _rows(rng: random.Random, codec: Rows, shard: int, itemsize: int) -> bytes:
    """Some rows of a shard, for any of the tables that frames are made of; sometimes not quite."""
    table, width, number = rng.choice([(60, 3, "I"), (200, 1, "I"), (40, 0, "I"), (1 << 33, 2, "q")])
    mine = np.arange(min(table, 200))
    mine = mine[owners(mine, codec.shards) == shard]
    numbers = sorted(rng.sample(mine.tolist(), rng.randrange(len(mine) + 1)))
    if numbers and rng.random() < 0.05:
        numbers[rng.randrange(len(numbers))] = rng.choice([0, 1, table - 1, table])
    count = len(numbers) + rng.choice([0] * 18 + [-1, 1])
    data = struct.pack(f"<{len(numbers)}{number}", *numbers) + rng.randbytes(len(numbers) * width * itemsize)
    return struct.pack("<Q", max(0, count)) + data + bytes(-len(data) % 8)


def _rice(codes: list[tuple[int, int]]) -> bytes:
    """Rice codes of (value, k), from the least significant bit of each byte."""
    out, at = 0, 0
    for value, k in codes:
        ones = value >> k
        out |= (((1 << ones) - 1) | (value & ((1 << k) - 1)) << (ones + 1)) << at
        at += ones + 1 + k
    return out.to_bytes(-(-at // 8), "little")


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _escapes(rng: random.Random, codec: Codec, body: bytes, *, total: bool) -> bytes:
    """A sketch with other escapes: any number of them, in order or not."""
    if len(body) < 16:
        return body
    each = 10 if total else 8
    (old,) = struct.unpack_from("<I", body, 8)
    rest = body[12 : max(12, len(body) - each * min(old, 1 << 10))]
    number = rng.choice([0, 1, 2, 5])
    at = [rng.randrange(60) for _ in range(number)]
    at = sorted(set(at)) if rng.random() < 0.8 else at
    values = [rng.choice([0x3F800000, 0x7F800000, 0xFFC00000, 1, rng.getrandbits(32)]) for _ in at]
    ranks = [rng.randrange(codec.workers) for _ in at] if total else []
    tail = struct.pack(f"<{len(at)}I{len(at)}I{len(ranks)}H", *at, *values, *ranks)
    return body[:8] + struct.pack("<I", len(at)) + rest + tail
