"""Values in and out of a sketch: exact conversions, and escapes for what is no lattice integer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.options import same
from sumwire.codec.sketch import exact
from sumwire.codec.sketch.parts import MAX_SIZE, Escapes, Peeled, SketchSum
from sumwire.codec.tensors import Tensor, buffer, flatten
from sumwire.errors import InputError, RoundError
from sumwire.kernels import sketch as kernels
from sumwire.kernels import sparse
from sumwire.kernels.hashing import hash64
from sumwire.kernels.sketch import Coordinates, Ints

Floats = NDArray[np.float32]

_ESCAPE_STREAM = 0xA0761D6478BD642F


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
        words = [exact.add(own, terms.lsb, group.tolist()) for own, group in zip(lattice.tolist(), groups, strict=True)]
        out[coordinates] = sparse.divide(np.array(words, np.uint32).view(np.float32), count)
    return out.reshape(terms.shape)
