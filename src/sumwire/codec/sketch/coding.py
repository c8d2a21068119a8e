"""From values to cells, from a peel to values, and the exact arithmetic in between.

Every non-zero is an integer multiple of the lattice's step, or an *escape*, which is listed beside the cells. What
could not be peeled comes in a second exchange, and all of it is proved before it is returned. Sums are rounded only
once, by integers of any length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Floats, FollowUp, Sum, Terms
from sumwire.codec.options import same, same_family
from sumwire.codec.sketch.parts import (
    ESCAPE,
    LEAST,
    MAX_SIZE,
    NO_ESCAPES,
    Escapes,
    Peeled,
    SketchPayload,
    SketchSum,
    SketchTerms,
)
from sumwire.codec.tensors import Tensor, buffer, flatten
from sumwire.errors import InputError, MismatchError, RoundError
from sumwire.kernels import sketch as kernels
from sumwire.kernels import sparse
from sumwire.kernels.hashing import hash64
from sumwire.kernels.sketch import Coordinates, Ints

if TYPE_CHECKING:
    from sumwire.codec.sketch.codec import Sketch

_ESCAPE_STREAM = 0xA0761D6478BD642F

INFINITY = 0x7F800000
NAN = 0x7FC00000

_SIGN = 1 << 31


def encode(codec: Sketch, x: Tensor, terms: SketchTerms, rank: int, round_id: int, out: Bytes | None) -> SketchPayload:
    """See `Sketch.encode`."""
    values, shape = read_tensor(x)
    same("shape", terms.shape, shape, "encode")
    at, words = kernels.nonzeros(values)
    whole, off = kernels.quantize(words, terms.exponent, terms.lsb)
    escapes = NO_ESCAPES
    if off.any():
        escapes = np.zeros(int(off.sum()), ESCAPE)
        escapes["at"], escapes["bits"], escapes["rank"] = at[off], words[off], rank
        at, whole = at[~off], whole[~off]
    geometry = terms.geometry(round_id)
    cells = buffer(out, 8 * terms.cells, np.uint8, values).view(np.int64)
    cells[:] = 0
    index = np.zeros(terms.index_words, np.uint64)
    if terms.direct:
        cells[at] = whole
    else:
        kernels.insert(geometry, at, whole, cells)
        kernels.mark(geometry, at, index)
    checksum = kernels.checksum(geometry.key, at, whole) + escape_checksum(geometry.key, escapes) & kernels.WORD
    return SketchPayload(codec, terms, round_id, rank, index, cells, checksum, largest_exponent(words), escapes)


def add_parts(codec: Sketch, parts: Sequence[SketchPayload | SketchSum], out: Bytes | None) -> SketchSum:
    """Cells add, index words join by OR, escapes are listed by coordinate and rank."""
    ranks: list[int] = sorted(rank for part in parts for rank in part.ranks)
    for a, b in pairwise(ranks):
        if a == b:
            raise MismatchError(f"cannot add: rank {a} is in the sum already; each rank adds once")
    inputs = [part.cells for part in parts]
    cells = buffer(out, inputs[0].nbytes, np.uint8, *inputs).view(np.int64)
    np.copyto(cells, inputs[0])
    for more in inputs[1:]:
        np.add(cells, more, out=cells)
    index = np.bitwise_or.reduce([part.index for part in parts])
    escapes = np.concatenate([part.escapes for part in parts])
    escapes = escapes[np.lexsort((escapes["rank"], escapes["at"]))]
    checksum = sum(part.checksum for part in parts) & kernels.WORD
    exponent = max(part.exponent for part in parts)
    terms, round_id = parts[0].terms, parts[0].round_id
    return SketchSum(codec, terms, round_id, len(ranks), tuple(ranks), index, cells, checksum, exponent, escapes)


def complete(peeled: Peeled, exact: NDArray[Any] | SketchSum | None, divisor: int, out: Floats | None) -> Floats:
    """See `Sketch.complete`."""
    total, values, rest = peeled.total, peeled.values, peeled.rest
    geometry = total.sketch_terms.geometry(total.round_id)
    if len(peeled.leftovers):
        stuck = leftover_integers(peeled, exact)
        rest = rest.copy()
        kernels.insert(geometry, peeled.leftovers, -stuck, rest)
        values = values.copy()
        values[np.searchsorted(peeled.at, peeled.leftovers)] = stuck
    _prove(peeled, geometry.key, values, rest)
    return floats_of(total, peeled.at, values, divisor, out)


def _prove(peeled: Peeled, key: int, values: Ints, rest: Ints) -> None:
    """Refuse values that do not account for every cell and for the checksum."""
    total = peeled.total
    if rest.any():
        raise RoundError(
            f"corrupt round {total.round_id}: {np.count_nonzero(rest)} of {len(rest)} cells hold more than the "
            "index accounts for; nothing was decoded: run the round again"
        )
    found = kernels.checksum(key, peeled.at, values) + escape_checksum(key, total.escapes)
    if found & kernels.WORD != total.checksum:
        raise RoundError(
            f"corrupt round {total.round_id}: the values do not have the checksum that was sent; nothing was "
            "decoded: run the round again"
        )


class SketchFollowUp(FollowUp):
    """All workers of a round have the same sum, so they find the same leftovers."""

    def __init__(self, codec: Sketch, peeled: Peeled) -> None:
        self._codec, self._peeled = codec, peeled
        self.terms = codec.second_terms(peeled)
        self.ranks = frozenset(peeled.total.ranks)

    def pick(self, x: Tensor) -> Tensor:
        return self._codec.pick(x, self._peeled.leftovers)

    def decode(self, total: Sum, *, out: Floats | None = None) -> Floats:
        assert isinstance(total, SketchSum)
        return self._codec.complete(self._peeled, total, out=out)


def own_terms(codec: Sketch, terms: Terms) -> SketchTerms:
    """The terms, if they are of this codec's family."""
    if not isinstance(terms, SketchTerms):
        raise InputError(f"a Sketch codec needs its own terms, not {type(terms).__name__}: call propose on it")
    same_family(codec, terms.codec, "read these terms")
    return terms


def read_tensor(x: Tensor) -> tuple[Floats, tuple[int, ...]]:
    """The tensor's values as flat float32, exactly."""
    flat, shape = flatten(x)
    if flat.dtype == np.float64:
        raise InputError("float64 cannot be summed without loss in float32: convert it first, x.astype(np.float32)")
    if flat.size > MAX_SIZE:
        raise InputError(f"a tensor of {flat.size} coordinates is too large for one sketch: the limit is {MAX_SIZE}")
    return flat.view(np.float32) if flat.dtype == np.float32 else sparse.to_float32(flat), shape


def largest_exponent(words: NDArray[np.uint32]) -> int:
    """The largest exponent field of a finite value, of float32 words."""
    fields = words >> np.uint32(23) & np.uint32(255)
    return int(fields[fields < 255].max(initial=0))


def escape_checksum(key: int, escapes: Escapes) -> int:
    """What the escapes add to a checksum; any change of one changes it."""
    if not len(escapes):
        return 0
    whose = escapes["at"].astype(np.uint64) << np.uint64(16) | escapes["rank"]
    odd = hash64(key ^ _ESCAPE_STREAM, whose) | np.uint64(1)
    return int((odd * escapes["bits"].astype(np.uint64)).sum(dtype=np.uint64))


def leftover_integers(peeled: Peeled, rows: NDArray[Any] | SketchSum | None) -> Ints:
    """Lattice integers of the leftovers, from every rank's own values or from their sum."""
    if isinstance(rows, SketchSum):
        return _second_integers(peeled, rows)
    total, terms = peeled.total, peeled.total.sketch_terms
    need = (len(total.ranks), len(peeled.leftovers))
    if rows is None or rows.dtype != np.float32 or rows.shape != need:
        given = "nothing" if rows is None else f"{rows.dtype} of shape {rows.shape}"
        raise InputError(f"leftovers need float32 values of shape {need}, a row for each rank of the sum; got {given}")
    stuck = np.zeros(need[1], np.int64)
    for row in rows:
        stuck += kernels.quantize(np.ascontiguousarray(row).view(np.uint32), terms.exponent, terms.lsb)[0]
    return stuck


def _second_integers(peeled: Peeled, second: SketchSum) -> Ints:
    if second.ranks != peeled.total.ranks:
        raise RoundError(
            f"round {peeled.total.round_id} is a sum of ranks {_some(peeled.total.ranks)}, but its second exchange of "
            f"{_some(second.ranks)}: leftovers cannot be computed, nothing was decoded; average the tensor again"
        )
    same("number of leftovers", len(peeled.leftovers), len(second.cells), "complete")
    same("exponent", peeled.total.sketch_terms.exponent, second.sketch_terms.exponent, "complete")
    return second.cells


def _some(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


def floats_of(total: SketchSum, at: Coordinates, values: Ints, count: int, out: Floats | None = None) -> Floats:
    """The tensor of lattice integers and escapes: sums rounded once, then divided by the count."""
    terms = total.sketch_terms
    out = buffer(out, terms.size, np.float32)
    out[:] = 0
    kernels.finish(at, values, terms.lsb, count, out)
    if len(total.escapes):
        coordinates, first = np.unique(total.escapes["at"], return_index=True)
        place = np.searchsorted(at, coordinates)
        known = np.append(at, np.uint32(0))[place] == coordinates
        lattice = np.where((place < len(at)) & known, np.append(values, 0)[place], 0)
        groups = np.split(total.escapes["bits"], first[1:])
        words = [
            add_exactly(own, terms.lsb, group.tolist()) for own, group in zip(lattice.tolist(), groups, strict=True)
        ]
        out[coordinates] = sparse.divide(np.array(words, np.uint32).view(np.float32), count)
    return out.reshape(terms.shape)


def scaled(bits: int) -> int:
    """A finite float32 word as a multiple of 2**-149.

    >>> scaled(0x3F800000) == 1 << 149
    True
    """
    field, mantissa = bits >> 23 & 255, bits & 0x7FFFFF
    size = mantissa if field == 0 else (mantissa | 1 << 23) << field - 1
    return -size if bits & _SIGN else size


def nearest(total: int) -> int:
    """The float32 word nearest to total * 2**-149, ties to even; a sum of zero is +0.0.

    >>> nearest(1), hex(nearest(-3 << 149)), hex(nearest(1 << 300))
    (1, '0xc0400000', '0x7f800000')
    """
    sign, size = (_SIGN, -total) if total < 0 else (0, total)
    shift = max(size.bit_length() - 24, 0)
    kept, rest, half = size >> shift, size & (1 << shift) - 1, 1 << shift >> 1
    if shift and (rest > half or (rest == half and kept & 1)):
        kept += 1  # at 2**24 the carry runs into the exponent, as it should
    # With the hidden bit in place, the exponent field counts from shift, not shift + 1.
    word = kept + (shift << 23)
    return sign | min(word, INFINITY)


def add_exactly(lattice: int, lsb: int, words: Iterable[int]) -> int:
    """The float32 word of lattice * 2**lsb + the values of the words: correctly rounded, IEEE's NaN and Inf.

    >>> hex(add_exactly(3, 0, [0x3F800000])), hex(add_exactly(0, 0, [0x7F800000, 0xFF800000]))
    ('0x40800000', '0x7fc00000')
    """
    total, infinite = lattice << lsb - LEAST, set()
    for word in words:
        if word >> 23 & 255 < 255:
            total += scaled(word)
        elif word & 0x7FFFFF:
            return NAN
        else:
            infinite.add(word)
    if infinite:
        return infinite.pop() if len(infinite) == 1 else NAN
    return nearest(total)
