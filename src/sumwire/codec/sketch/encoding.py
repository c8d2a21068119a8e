"""From values to cells, and cells added: every non-zero is an integer multiple of the lattice's step, or an escape."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sumwire.codec.algebra import Bytes
from sumwire.codec.options import same
from sumwire.codec.sketch.parts import ESCAPE, NO_ESCAPES, SketchPayload, SketchSum, SketchTerms
from sumwire.codec.sketch.values import escape_checksum, largest_exponent, read_tensor
from sumwire.codec.tensors import Tensor, buffer
from sumwire.errors import MismatchError
from sumwire.kernels import sketch as kernels

if TYPE_CHECKING:
    from sumwire.codec.sketch.codec import Sketch


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


def add(codec: Sketch, parts: Sequence[SketchPayload | SketchSum], out: Bytes | None) -> SketchSum:
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
