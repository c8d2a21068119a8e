"""What all that runs on partitions is built on: bounded memory, safe units, and the same bits wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

Floats = NDArray[np.float64]
Rows = NDArray[np.float32] | NDArray[np.float64]

TILE_VALUES = 1 << 19
"""Values of a tile, 4 MiB: larger ones leave the cache, smaller ones feed matrix products less well."""

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


@cache
def _controller() -> Any:
    # Once: it walks all loaded libraries, under the loader's lock, which a thread that imports something holds too.
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which matrix products are the same to the last bit, however many threads a process may use.

    OpenBLAS splits long sums between its threads. Where that number is the process's, threadpoolctl lets one Python
    thread decide it for all; where it is each thread's own, each has to. So whoever runs partitions on threads enters
    this, and what runs there does, too (`steady`). Dask's nannies start workers with one BLAS thread.
    """
    context: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return context


def steady(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with one_blas_thread():
            return function(*args, **kwargs)

    return limited
