"""What both estimators share: rows and options checked, clients that cannot be copied, lazy results."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import validate_data

from sumwire.codec.base import whole_number
from sumwire.errors import ConfigError
from sumwire.estimators.partitions import Array, is_dask

FLOATS = (np.float64, np.float32)


class PartitionedTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that transforms, with `partitions`, `client`, `max_iter` and `tol`."""

    partitions: int
    client: Any
    max_iter: int
    tol: float

    def _check_rows(self, x: Array, *, reset: bool, least: int = 1) -> Array:
        """X as scikit-learn wants it: finite floats in two dimensions. Chunks of a dask.array stay where they are."""
        if not is_dask(x):
            return validate_data(self, x, dtype=FLOATS, reset=reset, ensure_min_samples=least)
        if x.ndim != 2:
            raise ConfigError(f"X has {x.ndim} dimensions, 2 are needed: rows and features")
        # One row of zeros stands for all of them: width, dtype and feature names are checked, values on partitions.
        row = validate_data(self, np.zeros((1, x.shape[1]), x.dtype), dtype=FLOATS, reset=reset)
        return x.astype(row.dtype)

    def _check_options(self) -> None:
        at_least("partitions", self.partitions, 1)
        at_least("max_iter", self.max_iter, 1)
        if not isinstance(self.tol, numbers.Real) or not 0 <= self.tol < math.inf:
            raise ConfigError(f"tol={self.tol!r} is not a number of at least 0")

    def _apply(
        self, x: Array, function: Callable[..., Any], *arguments: Any, width: int | None, dtype: Any = None
    ) -> Array:
        """`function(rows, *arguments)` of all rows: at once, or lazily on each chunk of a dask.array.

        It gives `width` columns, or one value a row if that is None; in the rows' dtype, unless another is asked for.
        """
        x = self._check_rows(x, reset=False)
        kind = np.dtype(dtype or x.dtype)
        if not is_dask(x):
            return _cast(x, function, kind, *arguments)
        x = x.rechunk({1: -1})
        if width is None:
            shape: dict[str, Any] = {"drop_axis": 1, "meta": np.empty(0, kind)}
        else:
            shape = {"chunks": (x.chunks[0], (width,)), "meta": np.empty((0, 0), kind)}
        return x.map_blocks(_cast, function, kind, *arguments, dtype=kind, **shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = [np.dtype(kind).name for kind in FLOATS]
        return tags

    # A client holds connections, which can be neither copied nor saved. Clones share it, copies go without.

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}

    def __sklearn_clone__(self) -> Self:
        twin: Self = BaseEstimator.__sklearn_clone__(copy.copy(self))
        twin.client = self.client
        return twin


def at_least(name: str, value: object, least: int) -> int:
    """A whole number of at least so much, or an error that names it."""
    number = whole_number(name, value)
    if number < least:
        raise ConfigError(f"{name}={number} is less than {least}")
    return number


def _cast(rows: Any, function: Callable[..., Any], dtype: Any, *arguments: Any) -> Any:
    return function(rows, *arguments).astype(dtype, copy=False)
