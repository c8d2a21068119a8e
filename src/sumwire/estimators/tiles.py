"""Building blocks of what runs on partitions: bounded memory, safe units, and bit-identical results everywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from sumwire.errors import RangeError

Floats = NDArray[np.float64]
Rows = NDArray[np.float32] | NDArray[np.float64]

TILE_VALUES = 1 << 19
"""Values per tile, 4 MiB: larger tiles do not fit the cache, smaller ones slow down matrix products."""
LEAST_PEAK, MOST_PEAK = 2.0**-450, 2.0**450
"""Limits of the largest magnitude M: squares of 2^-50 M and sums of 2^100 squares are in the range of float64."""

P = ParamSpec("P")
R = TypeVar("R")


def tiles(rows: Rows, shift: Floats, width: int) -> Iterator[tuple[slice, Floats]]:
    """Tiles of the rows minus `shift` in float64, with room for `width` results per row.

    Always in row-major order, because matrix products of other layouts sum in another order.

    >>> [(place.stop, tile.shape) for place, tile in tiles(np.ones((3, 2)), np.zeros(2), width=1)]
    [(3, (3, 2))]
    """
    step = max(1, TILE_VALUES // max(1, rows.shape[1], width))
    for start in range(0, len(rows), step):
        place = slice(start, min(start + step, len(rows)))
        yield place, np.subtract(rows[place], shift, dtype=np.float64, order="C")


def powers_of_two(sizes: ArrayLike) -> Floats:
    """The largest powers of two that do not exceed the sizes: units that scale them to about 1 without rounding.

    >>> powers_of_two([5, 0.4, 0])
    array([4.  , 0.25, 1.  ])
    """
    given = np.asarray(sizes, np.float64)
    powers: Floats = np.where(given == 0, 1.0, np.ldexp(0.5, np.frexp(given)[1]))
    return powers


def largest(rows: Rows) -> float:
    """The largest magnitude; not finite if any value is not.

    >>> largest(np.array([[1.0, -3.0]])), largest(np.array([[-np.inf, np.nan]]))
    (3.0, nan)
    """
    # These functions propagate NaN; Python's max would not.
    return float(np.maximum(rows.max(initial=0), -rows.min(initial=0)))


def check_range(name: str, peak: float, *, least: float = 0.0) -> None:
    """Raise `RangeError` if the peak is above `MOST_PEAK` or below `least`: squares would not fit float64."""
    if peak > MOST_PEAK or 0 < peak < least:
        raise RangeError(
            f"the largest magnitude of {name} is {peak:.3g}, and squares do not fit float64 unless it is between "
            f"{LEAST_PEAK:.0e} and {MOST_PEAK:.0e}: divide {name} by {powers_of_two(peak):.3g} first"
        )


class _OneBlasThread:
    """Limits BLAS to one thread while in use: the first to enter sets it, the last to leave restores it."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = [(library, library.get_num_threads()) for library in _libraries()]
            self._inside += 1
            # Every thread sets it: in builds with OpenMP, the number is per thread.
            for library, _ in self._before:
                _set_threads(library, 1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for library, threads in self._before:
                    _set_threads(library, threads)


def _set_threads(library: Any, threads: int) -> None:
    # Newer threadpoolctl obeys only the thread that first set a limit; here, any thread may restore it.
    release = getattr(library, "clear_controlling_thread", lambda **_: None)
    release(force=True)
    library.set_num_threads(threads)
    release(force=True)


@cache
def _libraries() -> list[Any]:
    # Cached: it iterates over all loaded libraries under the loader lock, which importing threads hold, too.
    found: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found


one_blas_thread = _OneBlasThread()
"""A context in which matrix products are bit-identical for any number of threads.

OpenBLAS splits long sums between its threads. There is one context per process, because the number of threads is
usually per process, too: two contexts that each restore what they found would interfere. Code that runs partitions on
threads enters it before they start and leaves it after they have ended; the functions that run there enter it, too
(`single_blas_thread`). Dask nannies start workers with one BLAS thread.
"""


def single_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: run a function with one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with one_blas_thread:
            return function(*args, **kwargs)

    return limited
