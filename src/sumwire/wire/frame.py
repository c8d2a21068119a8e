"""Frames: the bytes of Terms, Payload and Sum on the wire.

`buffers` and `to_bytes` write them; `parse` reads one and its `terms`, `payload` or `sum` gives the
object back once everything in it has been checked. There is exactly one frame for each object, so
what was parsed writes the same bytes again. docs/format.md is the specification. `describe` and `build` are for
codecs themselves: how a worker tells an aggregator, in JSON, which codec its frames are of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from sumwire.codec.algebra import Addend, Shape, Terms
from sumwire.codec.base import Codec
from sumwire.codec.options import same, same_family
from sumwire.errors import FrameError, InputError, MismatchError, SumwireError
from sumwire.kernels.hashing import crc32c
from sumwire.wire import lattice, narrow, rows, sketch, snapshot, sparse
from sumwire.wire.body import Bytes
from sumwire.wire.control import Describe
from sumwire.wire.header import CRC_OFFSET, HEADER_SIZE, Header, read_crc, write_crc
from sumwire.wire.limits import FLAG_REFUSED, MAX_BODY, Kind, Tag

Item: TypeAlias = Terms | Addend
Buffer: TypeAlias = bytes | bytearray | memoryview

MODULES: dict[Tag, ModuleType] = {
    Tag.LATTICE: lattice,
    Tag.SPARSE: sparse,
    Tag.SKETCH: sketch,
    Tag.ROWS: rows,
    Tag.SNAPSHOT: snapshot,
}
"""Each has `CODEC`; `write_terms` and `write`; and `terms`, `payload` and `total`, which read."""

_KINDS: dict[str, type[Any]] = {tag.name.lower(): module.CODEC for tag, module in MODULES.items()}


def buffers(item: Item, *, round_id: int | None = None) -> list[bytes | memoryview]:
    """Header and body as pieces for sendmsg or writev. Bodies are views of the item's own memory.

    Only terms of a byte per block, and a sum of a Lattice tensor some of whose lanes have other than 8, 16 or 32 bits,
    are packed into fresh memory, and an open Sparse sum is closed. Terms do not know their round: give them `round_id`
    (0 if not).

    >>> from sumwire import Lattice
    >>> codec = Lattice(workers=2, bits=4)
    >>> terms = codec.propose(np.ones(1024, np.float32))
    >>> [len(piece) for piece in buffers(terms, round_id=7)]
    [72, 4]
    """
    header, body = _describe(item, round_id)
    start = header.pack()
    crc = crc32c(np.frombuffer(start, np.uint8))
    for piece in body:
        crc = crc32c(piece, crc)
    return [start + write_crc(crc), *(piece.data.toreadonly() for piece in body)]


def to_bytes(item: Item, *, round_id: int | None = None) -> bytes:
    """The frame in one piece: `buffers`, joined.

    >>> from sumwire import Lattice
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

    >>> from sumwire import Lattice
    >>> frame = to_bytes(Lattice(workers=2, bits=4).propose(np.ones(1024, np.float32)))
    >>> parse_header(frame[:HEADER_SIZE]).length
    4
    """
    header = Header.unpack(_view(buffer))
    if header.length > max_body:
        raise FrameError(
            f"body length {header.length} is over this reader's limit of {max_body} bytes: send parts, or raise it"
        )
    return header


def parse(buffer: Buffer) -> Frame:
    """Read a whole frame, without copying: the buffer must not change while the frame is in use.

    >>> from sumwire import Lattice
    >>> frame = parse(to_bytes(Lattice(workers=2, bits=4).propose(np.ones(1024, np.float32)), round_id=7))
    >>> frame.kind.name, frame.round_id, frame.size, len(frame.body)
    ('TERMS', 7, 1024, 4)
    """
    view = _view(buffer)
    header = Header.unpack(view)
    end = HEADER_SIZE + header.length
    if len(view) < end:
        raise FrameError(f"frame is truncated: {len(view)} bytes of {end}; read on before parsing")
    if len(view) > end:
        raise FrameError(f"frame has {len(view) - end} trailing bytes after its {end}: parse one frame at a time")
    return checked(header, view, crc32c(np.asarray(view[HEADER_SIZE:]), header_crc(view)))


def header_crc(buffer: Buffer) -> int:
    """The CRC of a header but for its last four bytes; that of the frame goes on from here with the body.

    >>> from sumwire import Lattice
    >>> frame = to_bytes(Lattice(workers=2, bits=4).propose(np.ones(1024, np.float32)))
    >>> crc32c(np.frombuffer(frame[HEADER_SIZE:], np.uint8), header_crc(frame)) == read_crc(frame)
    True
    """
    return crc32c(np.frombuffer(buffer, np.uint8, CRC_OFFSET))


def checked(header: Header, buffer: Buffer, crc: int) -> Frame:
    """`parse`, for a reader that has the header, and has computed the CRC while the bytes came in.

    >>> from sumwire import Lattice
    >>> frame = to_bytes(Lattice(workers=2, bits=4).propose(np.ones(1024, np.float32)))
    >>> checked(parse_header(frame), frame, read_crc(frame)).kind.name
    'TERMS'
    """
    view = _view(buffer)
    if crc != read_crc(view):
        raise FrameError(
            f"CRC {crc:#010x} is not the {read_crc(view):#010x} of the header: damaged, have it sent again"
        )
    frame = object.__new__(Frame)  # not by its fields, which would all be checked again
    frame.__dict__.update(vars(header), body=view[HEADER_SIZE:])
    return frame


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame(Header):
    """A header and its body, whole and undamaged. What they mean needs the codec and the terms.

    >>> from sumwire import Lattice
    >>> codec, x = Lattice(workers=2, bits=4), np.ones(1024, np.float32)
    >>> terms = codec.propose(x)
    >>> payload = codec.encode(x, terms, rank=0, round_id=7)
    >>> copy = parse(to_bytes(payload)).payload(codec, terms)
    >>> bool((copy.data == payload.data).all())
    True
    """

    body: memoryview = field(repr=False)

    def pieces(self) -> list[bytes | memoryview]:
        """The frame as it came, to be passed on."""
        start = self.pack()
        crc = crc32c(np.asarray(self.body), crc32c(np.frombuffer(start, np.uint8)))
        return [start + write_crc(crc), self.body]

    def terms(self, codec: Codec, shape: Shape) -> Any:
        """The terms of a tensor of this shape. They are copied: terms outlive a receiver's buffer.

        >>> from sumwire import Lattice
        >>> codec = Lattice(workers=2, bits=4)
        >>> parse(to_bytes(codec.propose(np.ones((8, 8), np.float32)))).terms(codec, (8, 8)).scales
        array([1.], dtype=float32)
        """
        self._expect(Kind.TERMS, codec, shape)
        if self.flags & FLAG_REFUSED:
            return codec.refuse(tuple(shape))
        return MODULES[self.tag].terms(self, np.asarray(self.body), codec, shape)

    def payload(self, codec: Codec, terms: Terms) -> Any:
        """The payload. Of a Lattice or Sparse it shares the buffer's memory; `codec` may be any member of the family.

        >>> from sumwire import Lattice
        >>> codec, x = Lattice(workers=2, bits=4), np.ones(1024, np.float32)
        >>> terms = codec.propose(x)
        >>> parse(to_bytes(codec.with_bits(2).encode(x, terms, rank=0))).payload(codec, terms).codec.bits
        2
        """
        self._expect(Kind.PAYLOAD, codec, terms.shape, terms)
        return MODULES[self.tag].payload(self, np.asarray(self.body), codec, terms)

    def sum(self, codec: Codec, terms: Terms) -> Any:
        """The sum, checked that it is of as many payloads as it says; a narrow one, if the frame holds that.

        Segments share the buffer's memory, and lanes of a tensor all of whose lanes have 8, 16 or 32 bits; others are
        unpacked.

        >>> from sumwire import Lattice
        >>> codec, x = Lattice(workers=2, bits=4), np.ones(1024, np.float32)
        >>> terms = codec.propose(x)
        >>> total = codec.add([codec.encode(x, terms, rank=0)])
        >>> parse(to_bytes(total)).sum(codec, terms).count
        1
        """
        self._expect(self.kind if self.kind.is_sum else Kind.SUM, codec, terms.shape, terms)
        module: ModuleType = narrow if self.kind is Kind.NARROW else MODULES[self.tag]
        return module.total(self, np.asarray(self.body), codec, terms)

    def _expect(self, kind: Kind, codec: Codec, shape: Shape, terms: Terms | None = None) -> None:
        """Refuse a frame of another kind, codec or tensor, or made under other terms."""
        if self.kind is not kind:
            raise FrameError(f"kind is {self.kind.name.lower()}, not {kind.name.lower()}: ask for what the frame holds")
        verb = f"read {kind.name.lower()}"
        if self.family != codec.family and self.tag is Tag.of(codec.family):
            raise MismatchError(
                f"cannot {verb}: codec family differs; a {type(codec).__name__} with other options than {codec!r} made "
                "the frame; all workers must use the same"
            )
        same("codec family", codec.family, self.family, verb)
        same("size", math.prod(shape), self.size, verb)
        if terms is not None:
            same_family(codec, terms.codec, f"{verb} under these terms")
            if terms.digest != self.digest:
                same("terms digest", f"{terms.digest:#x}", f"{self.digest:#x}", verb)


def _describe(item: Item, round_id: int | None) -> tuple[Header, list[Bytes]]:
    """The header of an item, and the arrays that are its body."""
    if not isinstance(item, Terms | Addend):
        raise InputError(f"a {type(item).__name__} has no frame: only terms, payloads and sums have")
    module = MODULES[Tag.of(item.codec.family)]
    if isinstance(item, Addend):
        same("round", item.round_id, item.round_id if round_id is None else round_id, "write frame")
        header, body = module.write(item)
    elif item.encodable:
        header, body = module.write_terms(item, round_id or 0)
    else:
        family, flags = item.codec.family, FLAG_REFUSED
        header, body = (
            Header(kind=Kind.TERMS, family=family, size=item.size, hi=0, length=0, flags=flags, round_id=round_id or 0),
            [],
        )
    return header, body


def _view(buffer: Buffer) -> memoryview:
    """The buffer as read-only bytes."""
    try:
        return memoryview(buffer).cast("B").toreadonly()
    except TypeError as error:
        raise InputError(f"a frame is parsed from contiguous bytes, not {type(buffer).__name__}: {error}") from None


def describe(codec: Codec) -> Describe:
    """The message that lets an aggregator build the codec.

    >>> from sumwire import Lattice
    >>> build(describe(Lattice(workers=4, bits=3))) == Lattice(workers=4, bits=3)
    True
    """
    kind = Tag.of(codec.family).name.lower()
    return Describe(codec.family, kind, {name: _plain(value) for name, value in codec.options().items()})


def build(description: Describe) -> Codec:
    """The codec, if this release makes the same of its options."""
    cls = _KINDS.get(description.kind)
    if cls is None:
        raise MismatchError(f"codec {description.kind!r} is unknown here: use one of {', '.join(_KINDS)}")
    known = {f.name for f in fields(cls)}
    if set(description.options) - known:
        raise MismatchError(
            f"options {sorted(set(description.options) - known)} of {description.kind} are unknown here: run "
            "the same release everywhere"
        )
    try:
        codec: Codec = cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in description.options.items()})
        family = codec.family
    except (SumwireError, TypeError, ValueError) as error:
        raise MismatchError(f"codec {description.kind} cannot be built: {error}") from None
    if family != description.family:
        raise MismatchError(
            f"the same options of codec {description.kind} give {family} here and {description.family} at the worker: "
            "run the same release everywhere"
        )
    return codec


def _plain(value: Any) -> Any:
    """What JSON can hold: tuples of widths go as lists."""
    return list(value) if isinstance(value, tuple) else value
