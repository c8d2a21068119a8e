"""Kinds and codecs of frames, and what their headers may hold: one refusal per way to break a limit.

docs/format.md has the table. Every field is checked here before anybody allocates from it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from sumwire.codec.algebra import MAX_ROUND, MAX_WORKERS
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

FLAG_REFUSED = 2
"""Terms of a worker that cannot encode its tensor (NaN, Inf); without a body."""

KNOWN_FLAGS = FLAG_COUNTS | FLAG_REFUSED

MAX_BODY = 1 << 32
"""Bytes. A frame is read into one buffer, so its header must not ask for all memory; parts are smaller."""

MAX_BLOCKS = MAX_BODY // 4
"""Terms are never split: the scales of all blocks must fit one body."""

MAX_SIZE = MAX_BLOCKS * MIN_BLOCK
"""Coordinates: no Lattice can cut more into MAX_BLOCKS blocks if its blocks are the smallest."""

MAX_COUNT = (1 << 31) - 1
"""Payloads in a sum: counts are int32 in memory."""

_WORD = (1 << 64) - 1


class Kind(IntEnum):
    """What a frame carries.

    >>> Kind(2).name
    'PAYLOAD'
    """

    TERMS = 1
    PAYLOAD = 2
    SUM = 3
    NARROW = 4

    @property
    def is_sum(self) -> bool:
        """Whether it is a sum, be it narrow or not."""
        return self in (Kind.SUM, Kind.NARROW)


class Tag(IntEnum):
    """Whose frame it is: the codec, which begins the name of its family.

    >>> Tag.of("sparse-0123456789abcdef"), Tag.SKETCH.prefix
    (<Tag.SPARSE: 2>, 'sketch-')
    """

    LATTICE = 1
    SPARSE = 2
    SKETCH = 3
    ROWS = 4
    SNAPSHOT = 5

    @property
    def prefix(self) -> str:
        return self.name.lower() + "-"

    @classmethod
    def of(cls, family: str) -> Tag:
        tag = _TAGS.get(family[: family.find("-") + 1])
        if tag is None:
            known = ", ".join(each.name.lower() for each in cls)
            raise InputError(
                f"a {family.partition('-')[0]} codec has no frames for a server: use one of {known}, or a process group"
            )
        return tag


_TAGS = {tag.prefix: tag for tag in Tag}  # a server looks here for every frame


class _Limits(NamedTuple):
    """What differs between codecs."""

    bits: range
    """In a payload."""
    size: int
    """The most coordinates."""
    unit: str
    """What lo and hi count."""
    units: int
    """The most of them."""
    remedy: str
    terms: tuple[tuple[int, int], ...]
    """Bytes of the body of terms: of all, and more for each unit; the options of a codec may leave several forms."""
    terms_have_units: bool = False
    """Whether hi of terms is the number of units; it is 0 otherwise."""
    splits: bool = True
    """Whether frames may hold a part of a tensor, and so counts."""
    refuses: bool = False
    """Whether there are tensors that the codec cannot encode."""
    narrows: bool = False
    """Whether there are narrow sums."""


_LIMITS = {
    Tag.LATTICE: _Limits(
        range(1, MAX_BITS + 1), MAX_SIZE, "block", MAX_BLOCKS, "use larger blocks",
        terms=((2, 1), (0, 4)), terms_have_units=True, refuses=True, narrows=True,
    ),
    Tag.SPARSE: _Limits(
        range(1, len(segment.KINDS) + 1), MAX_SIZE, "shard", MAX_SHARDS, "build the codec with fewer shards",
        terms=((0, 0),),
    ),
    Tag.SKETCH: _Limits(
        range(1), sketch_parts.MAX_SIZE, "part", 0, "a sketch is never split", terms=((16, 0),), splits=False
    ),
    Tag.ROWS: _Limits(
        range(1, len(segment.KINDS) + 1), MAX_SIZE, "shard", MAX_SHARDS, "build the codec with fewer shards",
        terms=((16, 0),),
    ),
    Tag.SNAPSHOT: _Limits(
        range(1), MAX_BLOCKS, "word", MAX_BLOCKS, "send it in pieces",
        terms=((0, 4),), terms_have_units=True, splits=False,
    ),
}  # fmt: skip
"""A codec more: a tag above, a row here, and its module in `frame.py`."""


def check(header: Header) -> None:
    """Refuse a header that breaks a limit: of all frames, then of its kind, then of its codec."""
    limits = _LIMITS[header.tag]
    _check_all(header, limits)
    _check_kind(header, limits)
    if header.flags & FLAG_REFUSED:
        _check_refusal(header, limits)
    _check_codec(header, limits)


def _check_all(header: Header, limits: _Limits) -> None:
    """Refuse what no frame may hold."""
    if header.flags & ~KNOWN_FLAGS:
        raise FrameError(
            f"flags {header.flags:#06x} has bits unknown to version {VERSION}: {KNOWN_FLAGS:#06x} are known"
        )
    if not 0 <= header.size <= limits.size:
        raise FrameError(f"size {header.size} is not in 0..{limits.size} coordinates: split the tensor")
    if not 0 <= header.hi <= limits.units:
        raise FrameError(f"{limits.unit} range ends at hi={header.hi}, the limit is {limits.units}: {limits.remedy}")
    if not 0 <= header.lo <= header.hi:
        raise FrameError(f"{limits.unit} range {header.lo}..{header.hi} has lo > hi: it must not run backwards")
    if not 0 <= header.length <= MAX_BODY:
        raise FrameError(f"body length {header.length} is over the limit of {MAX_BODY} bytes: send it in parts")
    if not 0 <= header.count <= MAX_COUNT:
        raise FrameError(f"count {header.count} is not in 0..{MAX_COUNT} payloads")
    if not 0 <= header.round_id <= MAX_ROUND:
        raise FrameError(f"round_id {header.round_id} is not in 0..2**64-1")
    if not 0 <= header.digest <= _WORD:
        raise FrameError(f"terms digest {header.digest} is not in 0..2**64-1")


def _check_kind(header: Header, limits: _Limits) -> None:
    """Refuse what this kind of frame may not hold: fields that it does not use are 0."""
    kind, name = header.kind, header.kind.name.lower()
    if header.bits not in (limits.bits if kind is Kind.PAYLOAD else range(1)):
        allowed = f"{limits.bits.start}..{limits.bits.stop - 1}"
        raise FrameError(f"bits {header.bits} is wrong in a {name} frame: {allowed} in a payload, else 0")
    if not 0 <= header.rank < (MAX_WORKERS if kind is Kind.PAYLOAD else 1):
        raise FrameError(f"rank {header.rank} is wrong in a {name} frame: 0..{MAX_WORKERS - 1} in a payload, else 0")
    if header.flags & FLAG_COUNTS and not kind.is_sum:
        raise FrameError(f"flags {header.flags:#06x} announces counts in a {name} frame: only sums have them")
    if not kind.is_sum and header.count != (kind is Kind.PAYLOAD):
        raise FrameError(f"count {header.count} is wrong in a {name} frame: 0 in terms, 1 in a payload")
    if kind is Kind.TERMS and header.digest:
        raise FrameError(f"terms digest {header.digest:#x} in a terms frame must be 0")
    if kind is Kind.TERMS and header.lo:
        raise FrameError(f"{limits.unit} range of terms begins at lo={header.lo}: terms are never split, send all")
    counts = 4 * (header.hi - header.lo)
    if header.flags & FLAG_COUNTS and header.length < counts:
        raise FrameError(f"body length {header.length} is too short: the counts alone have {counts} bytes")


def _check_refusal(header: Header, limits: _Limits) -> None:
    """Refuse a refusal that is not one: it is of terms, of a codec and a tensor that can be refused, and empty."""
    kind, codec = header.kind.name.lower(), header.tag.name.lower()
    if header.kind is not Kind.TERMS:
        raise FrameError(f"flags {header.flags:#06x} refuses a tensor in a {kind} frame: only terms do")
    if not limits.refuses or not header.size:
        raise FrameError(f"flags {header.flags:#06x} refuses {header.size} values, but {codec} encodes any such tensor")
    if header.hi or header.length:
        raise FrameError(
            f"{limits.unit} range of refusing terms ends at hi={header.hi}, body length {header.length}: both are 0"
        )


def _check_codec(header: Header, limits: _Limits) -> None:
    """Refuse what frames of this codec may not hold."""
    codec = header.tag.name.lower()
    if header.kind is Kind.NARROW and not limits.narrows:
        raise FrameError(f"kind is narrow in a {codec} frame: only lattices have narrow sums")
    if header.flags & FLAG_COUNTS and not limits.splits:
        raise FrameError(
            f"flags {header.flags:#06x} announces counts in a {codec}, which is never split: it has one count"
        )
    if limits.terms_have_units and header.hi > header.size:
        raise FrameError(f"{limits.unit} range ends at hi={header.hi}, but size {header.size} has fewer {limits.unit}s")
    if header.kind is not Kind.TERMS or header.flags & FLAG_REFUSED:
        return
    if header.hi and not limits.terms_have_units:
        raise FrameError(f"{limits.unit} range of {codec} terms ends at hi={header.hi}: they have none, hi must be 0")
    need = [fixed + each * header.hi for fixed, each in limits.terms]
    if header.length not in need:
        raise FrameError(
            f"body length {header.length} of terms is not {' or '.join(map(str, need))}, that of {codec} terms"
        )
