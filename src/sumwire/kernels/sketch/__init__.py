"""The kernels of the Sketch codec; reference.py defines every one of them."""

from __future__ import annotations

from sumwire.kernels.arrays import Ints, Words
from sumwire.kernels.backend import dispatch
from sumwire.kernels.sketch import reference
from sumwire.kernels.sketch.reference import GROUP, TABLES, Coordinates, Geometry

__all__ = ["GROUP", "TABLES", "Coordinates", "Geometry", "Ints", "Words"]

WORD = (1 << 64) - 1

nonzeros = dispatch(reference.nonzeros)
quantize = dispatch(reference.quantize)
insert = dispatch(reference.insert)
mark = dispatch(reference.mark)
candidates = dispatch(reference.candidates)
peel = dispatch(reference.peel)
checksum = dispatch(reference.checksum)
finish = dispatch(reference.finish)
