"""The sketch's kernels: `sketch_reference` defines them, `sketch_native` is the compiled twin."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels import backend
from sumwire.kernels.lattice import reference
from sumwire.kernels.sketch import reference as sketch_reference
from sumwire.kernels.sketch.reference import GROUP, TABLES, Coordinates, Geometry, Ints, Words

__all__ = ["GROUP", "TABLES", "Coordinates", "Geometry", "Ints", "Words"]

WORD = (1 << 64) - 1


@lru_cache(maxsize=1)
def _module() -> ModuleType:
    if backend() is reference:
        return sketch_reference
    from sumwire.kernels.sketch import native as sketch_native

    return sketch_native


def nonzeros(x: NDArray[np.float32]) -> tuple[Coordinates, NDArray[np.uint32]]:
    """Coordinates and float32 words of what is not zero: see `sketch_reference.nonzeros`."""
    return cast(tuple[Coordinates, NDArray[np.uint32]], _module().nonzeros(x))


def quantize(bits: NDArray[np.uint32], exponent: int, lsb: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Float32 words as lattice integers, and which escape: see `sketch_reference.quantize`."""
    return cast(tuple[Ints, NDArray[np.bool_]], _module().quantize(bits, exponent, lsb))


def insert(geometry: Geometry, at: Coordinates, values: Ints, cells: Ints) -> None:
    """Add values into cells: see `sketch_reference.insert`."""
    _module().insert(geometry, at, values, cells)


def mark(geometry: Geometry, at: Coordinates, words: Words) -> None:
    """Set coordinates in an index: see `sketch_reference.mark`."""
    _module().mark(geometry, at, words)


def candidates(geometry: Geometry, words: Words) -> Coordinates:
    """Coordinates that an index allows: see `sketch_reference.candidates`."""
    return cast(Coordinates, _module().candidates(geometry, words))


def peel(geometry: Geometry, at: Coordinates, cells: Ints, values: Ints, rest: Ints) -> NDArray[np.bool_]:
    """Recover values, and what is left of the cells; which ones stay: see `sketch_reference.peel`."""
    return cast(NDArray[np.bool_], _module().peel(geometry, at, cells, values, rest))


def checksum(key: int, at: Coordinates, values: Ints) -> int:
    """A linear checksum: see `sketch_reference.checksum`."""
    return cast(int, _module().checksum(key, at, values))


def finish(at: Coordinates, values: Ints, lsb: int, count: int, out: NDArray[np.float32]) -> None:
    """Lattice integers to float32 means, where they belong: see `sketch_reference.finish`."""
    _module().finish(at, values, lsb, count, out)
