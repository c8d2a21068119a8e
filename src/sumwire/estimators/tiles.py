"""What all that runs on partitions is built on: bounded memory, safe units, and the same bits wherever it runs."""

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
"""Values of a tile, 4 MiB: larger ones leave the cache, smaller ones feed matrix products less well."""
LEAST_PEAK, MOST_PEAK = 2.0**-450, 2.0**450
"""Of largest magnitudes: squares of differences of 2^-50 of them, and sums of 2^100 squares, are in float64's range."""

P = ParamSpec("P")
R = TypeVar("R")


def tiles(rows: Rows, shift: Floats, width: int) -> Iterator[tuple[slice, Floats]]:
    """The rows minus `shift` in float64, some at a time; as many as leave room for `width` results a row.

    Always in row-major order: matrix products of other layouts add up in another order.

    >>> [(place.stop, tile.shape) for place, tile in tiles(np.ones((3, 2)), np.zeros(2), width=1)]
    [(3, (3, 2))]
    """
    step = max(1, TILE_VALUES // max(1, rows.shape[1], width))
    for start in range(0, len(rows), step):
        place = slice(start, min(start + step, len(rows)))
        yield place, np.subtract(rows[place], shift, dtype=np.float64, order="C")


def powers_of_two(sizes: ArrayLike) -> Floats:
    """The largest powers of two that are not above the sizes: units in which they are about 1, and nothing is rounded.

    >>> powers_of_two([5, 0.4, 0])
    array([4.  , 0.25, 1.  ])
    """
    given = np.asarray(sizes, np.float64)
    powers: Floats = np.where(given == 0, 1.0, np.ldexp(0.5, np.frexp(given)[1]))
    return powers


def largest(rows: Rows) -> float:
    """The largest magnitude of any value: not finite if any is not.

    >>> largest(np.array([[1.0, -3.0]])), largest(np.array([[-np.inf, np.nan]]))
    (3.0, nan)
    """
    # Each of the two lets NaN through; Python's max would not.
    return float(np.maximum(rows.max(initial=0), -rows.min(initial=0)))


def check_range(name: str, peak: float, *, least: float = 0.0) -> None:
    """Refuse values whose squares would leave float64: a largest magnitude above `MOST_PEAK`, or below `least`."""
    if peak > MOST_PEAK or 0 < peak < least:
        raise RangeError(
            f"the largest magnitude of {name} is {peak:.3g}, and squares do not fit float64 unless it is between "
            f"{LEAST_PEAK:.0e} and {MOST_PEAK:.0e}: divide {name} by {powers_of_two(peak):.3g} first"
        )


class _OneBlasThread:
    """One BLAS thread for as long as anybody is inside: the first to enter sets it, the last to leave restores it."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = [(library, library.get_num_threads()) for library in _libraries()]
            self._inside += 1
            # By everybody: in builds with OpenMP the number is each thread's own.
            for library, _ in self._before:
                _set_threads(library, 1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for library, threads in self._before:
                    _set_threads(library, threads)


def _set_threads(library: Any, threads: int) -> None:
    # Newer threadpoolctl heeds only the thread that set a limit first, while it lives; here, the last may restore.
    heed_all = getattr(library, "clear_controlling_thread", lambda **_: None)
    heed_all(force=True)
    library.set_num_threads(threads)
    heed_all(force=True)


@cache
def _libraries() -> list[Any]:
    # Once: it walks all loaded libraries, under the loader's lock, which a thread that imports something holds too.
    found: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found


one_blas_thread = _OneBlasThread()
"""A context in which matrix products are the same to the last bit, however many threads a process may use.

OpenBLAS splits long sums between its threads. There is one for the process, as the number of threads mostly is the
process's, too: two that each restore what they found would leave behind what the other one had set. Whoever runs
partitions on threads enters it before they start and leaves it when they have ended; what runs there enters it, too
(`steady`). Dask's nannies start workers with one BLAS thread.
"""


def steady(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with one_blas_thread:
            return function(*args, **kwargs)

    return limited
