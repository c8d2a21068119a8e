"""Kinds and codecs of frames, and what their headers may hold: one refusal per way to break a limit.

docs/format.md has the table. Every field is checked here before anybody allocates from it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from sumwire.codec.base import MAX_ROUND, MAX_WORKERS
from sumwire.codec.lattice.options import MIN_BLOCK
from sumwire.codec.sketch import parts as sketch_parts
from sumwire.codec.sparse import segment
from sumwire.codec.sparse.sharding import MAX_SHARDS
from sumwire.errors import FrameError, InputError
from sumwire.kernels.lattice.scheme import MAX_BITS

if TYPE_CHECKING:
    from sumwire.wire.header import Header

VERSION = 1

FLAG_COUNTS = 1
"""The body of a sum begins with a count for each block or shard."""

KNOWN_FLAGS = FLAG_COUNTS

MAX_BODY = 1 << 32
"""Bytes. A frame is read into one buffer, so its header must not ask for all memory; parts are smaller."""

MAX_BLOCKS = MAX_BODY // 4
"""Terms are never split: the scales of all blocks must fit one body."""

MAX_SIZE = MAX_BLOCKS * MIN_BLOCK
"""Coordinates: no Lattice can cut more into MAX_BLOCKS blocks if its blocks are the smallest."""

MAX_COUNT = (1 << 31) - 1
"""Payloads in a sum: counts are int32 in memory."""

_SKETCH_TERMS = 16
_WORD = (1 << 64) - 1


class Kind(IntEnum):
    """What a frame carries.

    >>> Kind(2).name
    'PAYLOAD'
    """

    TERMS = 1
    PAYLOAD = 2
    SUM = 3


class Tag(IntEnum):
    """Whose frame it is: the codec, which begins the name of its family.

    >>> Tag.of("sparse-0123456789abcdef"), Tag.SKETCH.prefix
    (<Tag.SPARSE: 2>, 'sketch-')
    """

    LATTICE = 1
    SPARSE = 2
    SKETCH = 3

    @property
    def prefix(self) -> str:
        return self.name.lower() + "-"

    @classmethod
    def of(cls, family: str) -> Tag:
        tag = _TAGS.get(family[: family.find("-") + 1])
        if tag is None:
            raise InputError(f"codec family {family!r} has no frames: only those of Lattice, Sparse and Sketch have")
        return tag


_TAGS = {tag.prefix: tag for tag in Tag}  # a server looks here for every frame


class _Rules(NamedTuple):
    """Limits that differ between codecs."""

    bits: range
    """In a payload."""
    size: int
    """The most coordinates."""
    unit: str
    """What lo and hi count."""
    units: int
    """The most of them."""
    remedy: str


_RULES = {
    Tag.LATTICE: _Rules(range(1, MAX_BITS + 1), MAX_SIZE, "block", MAX_BLOCKS, "use larger blocks"),
    Tag.SPARSE: _Rules(
        range(1, len(segment.KINDS) + 1), MAX_SIZE, "shard", MAX_SHARDS, "build the codec with fewer shards"
    ),
    Tag.SKETCH: _Rules(range(1), sketch_parts.MAX_SIZE, "part", 0, "a sketch is never split"),
}


def check(header: Header) -> None:
    """Refuse a header that breaks a limit: of all frames, then of its kind, then of its codec."""
    rules = _RULES[header.tag]
    _check_all(header, rules)
    _check_kind(header, rules)
    _check_codec(header)


def _check_all(header: Header, rules: _Rules) -> None:
    """Refuse what no frame may hold."""
    if header.flags & ~KNOWN_FLAGS:
        raise FrameError(
            f"flags {header.flags:#06x} has bits unknown to version {VERSION}: {KNOWN_FLAGS:#06x} are known"
        )
    if not 0 <= header.size <= rules.size:
        raise FrameError(f"size {header.size} is not in 0..{rules.size} coordinates: split the tensor")
    if not 0 <= header.hi <= rules.units:
        raise FrameError(f"{rules.unit} range ends at hi={header.hi}, the limit is {rules.units}: {rules.remedy}")
    if not 0 <= header.lo <= header.hi:
        raise FrameError(f"{rules.unit} range {header.lo}..{header.hi} has lo > hi: it must not run backwards")
    if not 0 <= header.length <= MAX_BODY:
        raise FrameError(f"body length {header.length} is over the limit of {MAX_BODY} bytes: send it in parts")
    if not 0 <= header.count <= MAX_COUNT:
        raise FrameError(f"count {header.count} is not in 0..{MAX_COUNT} payloads")
    if not 0 <= header.round_id <= MAX_ROUND:
        raise FrameError(f"round_id {header.round_id} is not in 0..2**64-1")
    if not 0 <= header.digest <= _WORD:
        raise FrameError(f"terms digest {header.digest} is not in 0..2**64-1")


def _check_kind(header: Header, rules: _Rules) -> None:
    """Refuse what this kind of frame may not hold: fields that it does not use are 0."""
    kind, name = header.kind, header.kind.name.lower()
    if header.bits not in (rules.bits if kind is Kind.PAYLOAD else range(1)):
        allowed = f"{rules.bits.start}..{rules.bits.stop - 1}"
        raise FrameError(f"bits {header.bits} is wrong in a {name} frame: {allowed} in a payload, else 0")
    if not 0 <= header.rank < (MAX_WORKERS if kind is Kind.PAYLOAD else 1):
        raise FrameError(f"rank {header.rank} is wrong in a {name} frame: 0..{MAX_WORKERS - 1} in a payload, else 0")
    if header.flags & FLAG_COUNTS and kind is not Kind.SUM:
        raise FrameError(f"flags {header.flags:#06x} announces counts in a {name} frame: only sums have them")
    if kind is not Kind.SUM and header.count != (kind is Kind.PAYLOAD):
        raise FrameError(f"count {header.count} is wrong in a {name} frame: 0 in terms, 1 in a payload")
    if kind is Kind.TERMS and header.digest:
        raise FrameError(f"terms digest {header.digest:#x} in a terms frame must be 0")
    if kind is Kind.TERMS and header.lo:
        raise FrameError(f"{rules.unit} range of terms begins at lo={header.lo}: terms are never split, send all")
    counts = 4 * (header.hi - header.lo)
    if header.flags & FLAG_COUNTS and header.length < counts:
        raise FrameError(f"body length {header.length} is too short: the counts alone have {counts} bytes")


def _check_codec(header: Header) -> None:
    """Refuse what frames of this codec may not hold."""
    tag, terms = header.tag, header.kind is Kind.TERMS
    if tag is Tag.LATTICE and header.hi > header.size:
        raise FrameError(f"block range ends at hi={header.hi}, but size {header.size} cannot have so many blocks")
    if tag is Tag.SPARSE and terms and header.hi:
        raise FrameError(f"shard range of sparse terms ends at hi={header.hi}: they are empty, hi must be 0")
    if tag is Tag.SKETCH and header.flags & FLAG_COUNTS:
        raise FrameError(f"flags {header.flags:#06x} announces counts in a sketch: it is never split, so has one count")
    need = {Tag.LATTICE: 4 * header.hi, Tag.SPARSE: 0, Tag.SKETCH: _SKETCH_TERMS}[tag]
    if terms and header.length != need:
        raise FrameError(f"body length {header.length} of terms is not {need}, that of {tag.name.lower()} terms")
