"""From a peel to values: take the leftovers from a second exchange, and prove all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Floats
from sumwire.codec.sketch.parts import Peeled, SketchSum
from sumwire.codec.sketch.values import escape_checksum, floats_of, leftover_integers
from sumwire.errors import RoundError
from sumwire.kernels import sketch as kernels
from sumwire.kernels.sketch import Ints


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
