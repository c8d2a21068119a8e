"""Frames: the bytes of Terms, Payload and Sum on the wire.

`buffers` and `to_bytes` write them; `parse` reads one and its `terms`, `payload` or `sum` gives the
object back once everything in it has been checked. There is exactly one frame for each object, so
what was parsed writes the same bytes again. docs/format.md is the specification.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sumwire import kernels
from sumwire.codec.base import Shape, same
from sumwire.codec.lattice import Lattice
from sumwire.codec.lattice_checks import LARGEST_SCALE
from sumwire.codec.lattice_parts import LatticePayload, LatticeSum, LatticeTerms
from sumwire.errors import ConfigError, FrameError, InputError
from sumwire.wire import body as body_rules
from sumwire.wire.header import (
    CRC_OFFSET,
    FLAG_COUNTS,
    HEADER_SIZE,
    MAX_BODY,
    Header,
    Kind,
    read_crc,
    write_crc,
)

Item: TypeAlias = LatticeTerms | LatticePayload | LatticeSum
Buffer: TypeAlias = bytes | bytearray | memoryview
Bytes: TypeAlias = NDArray[np.uint8]


def buffers(item: Item, *, round_id: int | None = None) -> list[bytes | memoryview]:
    """Header and body as pieces for sendmsg or writev. Bodies are views of the item's own memory.

    Only a sum with lanes of other than 8, 16 or 32 bits is packed into fresh memory. Terms do not
    know their round: give them `round_id` (0 if not).

    >>> codec = Lattice(workers=2, bits=4)
    >>> terms = codec.propose(np.ones(1024, np.float32))
    >>> [len(piece) for piece in buffers(terms, round_id=7)]
    [72, 8]
    """
    header, body = _describe(item, round_id)
    start = header.pack()
    crc = kernels.crc32c(np.frombuffer(start, np.uint8))
    for piece in body:
        crc = kernels.crc32c(piece, crc)
    return [start + write_crc(crc), *(piece.data.toreadonly() for piece in body)]


def to_bytes(item: Item, *, round_id: int | None = None) -> bytes:
    """The frame in one piece: `buffers`, joined.

    >>> codec = Lattice(workers=2, bits=4)
    >>> terms = codec.propose(np.ones(1024, np.float32))
    >>> parse(to_bytes(terms)).terms(codec, (1024,)) == terms
    True
    """
    return b"".join(buffers(item, round_id=round_id))


def parse_header(buffer: Buffer, *, max_body: int = MAX_BODY) -> Header:
    """Read the first `HEADER_SIZE` bytes of a frame, for a reader that needs `length` to read on.

    Every field is within its limits, but only `parse` proves by the CRC that it is as it was sent.
    A reader that knows its tensors passes a smaller `max_body` than the format's.

    >>> frame = to_bytes(Lattice(workers=2, bits=4).propose(np.ones(1024, np.float32)))
    >>> parse_header(frame[:HEADER_SIZE]).length
    8
    """
    header = Header.unpack(_view(buffer))
    if header.length > max_body:
        raise FrameError(f"body length {header.length} is over this reader's limit of {max_body} bytes: send parts")
    return header


def parse(buffer: Buffer) -> Frame:
    """Read a whole frame, without copying: the buffer must not change while the frame is in use.

    >>> frame = parse(to_bytes(Lattice(workers=2, bits=4).propose(np.ones(1024, np.float32)), round_id=7))
    >>> frame.kind.name, frame.round_id, frame.size, len(frame.body)
    ('TERMS', 7, 1024, 8)
    """
    view = _view(buffer)
    header = Header.unpack(view)
    end = HEADER_SIZE + header.length
    if len(view) < end:
        raise FrameError(f"frame is truncated: {len(view)} bytes of {end}; read on before parsing")
    if len(view) > end:
        raise FrameError(f"frame has {len(view) - end} trailing bytes after its {end}: parse one frame at a time")
    body = view[HEADER_SIZE:]
    crc = kernels.crc32c(np.asarray(body), kernels.crc32c(np.asarray(view[:CRC_OFFSET])))
    if crc != read_crc(view):
        raise FrameError(
            f"CRC {crc:#010x} is not the {read_crc(view):#010x} of the header: damaged, have it sent again"
        )
    return Frame(**vars(header), body=body)


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame(Header):
    """A header and its body, whole and undamaged. What they mean needs the codec and the terms.

    >>> codec, x = Lattice(workers=2, bits=4), np.ones(1024, np.float32)
    >>> terms = codec.propose(x)
    >>> payload = codec.encode(x, terms, rank=0, round_id=7)
    >>> copy = parse(to_bytes(payload)).payload(codec, terms)
    >>> bool((copy.data == payload.data).all())
    True
    """

    body: memoryview = field(repr=False)

    def terms(self, codec: Lattice, shape: Shape) -> LatticeTerms:
        """The terms of a tensor of this shape. They are copied: terms outlive a receiver's buffer.

        >>> codec = Lattice(workers=2, bits=4)
        >>> parse(to_bytes(codec.propose(np.ones((8, 8), np.float32)))).terms(codec, (8, 8)).scales
        array([1.], dtype=float32)
        """
        self._expect(Kind.TERMS, codec, math.prod(shape))
        blocks = body_rules.block_count(self.size, codec.block)
        if self.hi != blocks:
            raise FrameError(f"block range of terms ends at hi={self.hi}, but size {self.size} has {blocks} blocks")
        words = np.asarray(self.body).copy().view(np.uint32)
        # As integers, so that NaN, infinity and every negative (-0 too) is larger than the limit.
        bad = np.flatnonzero(words > LARGEST_SCALE.view(np.uint32))
        scales = words.view(np.float32)
        if len(bad):
            raise FrameError(f"scale {scales[bad[0]]} of block {bad[0]} is not in 0..{LARGEST_SCALE} (2**115)")
        return LatticeTerms(codec, tuple(shape), scales)

    def payload(self, codec: Lattice, terms: LatticeTerms) -> LatticePayload:
        """The payload, sharing the buffer's memory. `codec` may be any member of the family.

        >>> codec, x = Lattice(workers=2, bits=4), np.ones(1024, np.float32)
        >>> terms = codec.propose(x)
        >>> parse(to_bytes(codec.with_bits(2).encode(x, terms, rank=0))).payload(codec, terms).codec.bits
        2
        """
        self._expect(Kind.PAYLOAD, codec, terms.size)
        sizes = self._blocks(codec, terms)
        if self.bits > codec.family_bits:
            raise FrameError(f"bits {self.bits} is over the {codec.family_bits} of the family: no such member")
        try:
            member = codec if codec.bits == self.bits else codec.with_bits(self.bits)
        except ConfigError as error:
            raise FrameError(f"bits {self.bits} is wrong: {error}") from None
        if self.rank >= codec.workers:
            raise FrameError(f"rank {self.rank} is not in 0..{codec.workers - 1}: no such worker")
        widths = terms.plan(member).widths[self.lo : self.hi]
        data = np.asarray(self.body)
        body_rules.check(data, sizes, widths, "index")
        return LatticePayload(member, terms, self.round_id, self.rank, data, widths, self.lo, self.hi)

    def sum(self, codec: Lattice, terms: LatticeTerms) -> LatticeSum:
        """The sum, checked that no lane holds more than its count of payloads can give.

        Lanes of 8, 16 or 32 bits share the buffer's memory, others are unpacked.

        >>> codec, x = Lattice(workers=2, bits=4), np.ones(1024, np.float32)
        >>> terms = codec.propose(x)
        >>> total = codec.add([codec.encode(x, terms, rank=0)])
        >>> parse(to_bytes(total)).sum(codec, terms).count
        1
        """
        self._expect(Kind.SUM, codec, terms.size)
        sizes = self._blocks(codec, terms)
        counts, data = self._counts(codec)
        scheme, size = codec.scheme, terms.size
        classes = terms.plan(codec).classes[self.lo : self.hi]
        widths = kernels.lane_bits(scheme, classes)
        body_rules.check(data, sizes, widths, "lane")
        per_block = kernels.lane_bytes(scheme, sizes, classes)
        lanes = data
        if not body_rules.as_in_memory(widths):
            lanes = np.empty(int(per_block.sum()), np.uint8)
            kernels.unpack_lanes(scheme, size, classes, data, lanes, self.lo, self.hi)
            lanes.flags.writeable = False
        granularity = np.array([0 if spec is None else spec.granularity for spec in scheme.lattices], np.int64)
        limits = counts * granularity[classes]
        over = np.flatnonzero(body_rules.peaks(lanes, sizes, per_block) > limits)
        if len(over):
            block, count, limit = self.lo + over[0], counts[over[0]], limits[over[0]]
            raise FrameError(f"a lane of block {block} is over {limit}, the most that {count} payloads add up to")
        return LatticeSum(codec, terms, self.round_id, self.count, lanes, counts, self.lo, self.hi)

    def _expect(self, kind: Kind, codec: Lattice, size: int) -> None:
        if self.kind is not kind:
            raise FrameError(f"kind is {self.kind.name.lower()}, not {kind.name.lower()}: ask for what the frame holds")
        same("codec family", codec.family, self.family, f"read {kind.name.lower()}")
        same("size", size, self.size, f"read {kind.name.lower()}")

    def _blocks(self, codec: Lattice, terms: LatticeTerms) -> NDArray[np.int64]:
        """Sizes of the blocks that the frame covers, if these are its terms and have them."""
        same("codec family of terms", codec.family, terms.codec.family, f"read {self.kind.name.lower()}")
        same("terms digest", f"{terms.digest:#x}", f"{self.digest:#x}", f"read {self.kind.name.lower()}")
        sizes = terms.sizes
        if self.hi > len(sizes):
            raise FrameError(f"block range ends at hi={self.hi}, but the terms have {len(sizes)} blocks")
        if any(0 < edge < len(sizes) and sizes[edge - 1] < 8 for edge in (self.lo, self.hi)):
            raise FrameError(
                f"block range {self.lo}..{self.hi} has an edge between blocks that share a byte: send both"
            )
        return sizes[self.lo : self.hi]

    def _counts(self, codec: Lattice) -> tuple[NDArray[np.int32], Bytes]:
        """Payloads in each block, and the rest of the body."""
        blocks, body = self.hi - self.lo, np.asarray(self.body)
        if self.count > codec.headroom:
            raise FrameError(f"count {self.count} is over the headroom of {codec.headroom} payloads")
        if not self.flags & FLAG_COUNTS:
            return np.full(blocks, self.count, np.int32), body
        words = body[: 4 * blocks].copy().view(np.uint32)
        if not blocks or words.max() != self.count:
            raise FrameError(f"count {self.count} is not the largest of the {blocks} counts in the body")
        if words.min() == self.count:
            raise FrameError(f"flags announces counts, but all are {self.count}: leave them out")
        return words.view(np.int32), body[4 * blocks :]


def _describe(item: Item, round_id: int | None) -> tuple[Header, list[Bytes]]:
    """The header of an item, and the arrays that are its body."""
    if isinstance(item, LatticeTerms):
        blocks, family = len(item.scales), item.codec.family
        header = Header(
            kind=Kind.TERMS, family=family, size=item.size, hi=blocks, length=4 * blocks, round_id=round_id or 0
        )
        return header, [item.scales.view(np.uint8)]
    if not isinstance(item, LatticePayload | LatticeSum):
        raise InputError(f"a {type(item).__name__} has no frame: only terms, payloads and sums of Lattice have")
    if round_id is not None:
        same("round", item.round_id, round_id, "write frame")
    kind, bits, rank, flags, count = Kind.PAYLOAD, item.codec.bits, 0, 0, item.count
    if isinstance(item, LatticePayload):
        rank, body = item.rank, [item.data]
    else:
        kind, bits, body = Kind.SUM, 0, [_wire_lanes(item)]
        count = int(item.counts.max()) if len(item.counts) else count
        if len(item.counts) and item.counts.min() != count:
            flags = FLAG_COUNTS
            body.insert(0, item.counts.view(np.uint8))
    header = Header(
        kind=kind,
        family=item.codec.family,
        size=item.lattice_terms.size,
        lo=item.lo,
        hi=item.hi,
        length=sum(piece.nbytes for piece in body),
        round_id=item.round_id,
        bits=bits,
        rank=rank,
        count=count,
        digest=item.terms.digest,
        flags=flags,
    )
    return header, body


def _wire_lanes(total: LatticeSum) -> Bytes:
    """The lanes as they are, if they may go like that, else packed."""
    classes = total.lattice_terms.plan(total.codec).classes[total.lo : total.hi]
    widths = kernels.lane_bits(total.codec.scheme, classes)
    return total.lanes if body_rules.as_in_memory(widths) else total.packed()


def _view(buffer: Buffer) -> memoryview:
    """The buffer as read-only bytes."""
    try:
        return memoryview(buffer).cast("B").toreadonly()
    except TypeError as error:
        raise InputError(f"a frame is parsed from contiguous bytes, not {type(buffer).__name__}: {error}") from None
