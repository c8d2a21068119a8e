"""What both estimators share: validation of rows and options, lazy results, cloning with a Dask client, and `Best`."""

from __future__ import annotations

import copy
import math
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.validation import validate_data

from sumwire.codec.options import whole_number
from sumwire.errors import ConfigError
from sumwire.estimators.partitions import Array, is_dask
from sumwire.estimators.tiles import Rows, check_range, largest

FLOATS = (np.float64, np.float32)

T = TypeVar("T")


class PartitionedTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the estimators, with `partitions`, `client`, `max_iter` and `tol`."""

    partitions: int
    client: Any
    max_iter: int
    tol: float

    def _check_rows(self, x: Array, *, reset: bool, least: int = 1) -> Array:
        """Validate X as scikit-learn does: finite floats, two dimensions, as many columns as in `fit`.

        Chunks of a dask.array stay on the cluster; their values are checked there when they are used.
        """
        if not is_dask(x):
            _refuse_frame(x)
            return validate_data(self, x, dtype=FLOATS, reset=reset, ensure_min_samples=least)
        return x.astype(validate_data(self, _stand_in(x), dtype=FLOATS, reset=reset).dtype)

    def _check_coordinates(self, x: Array, width: int) -> Array:
        """Validate X as a result of `transform`, with `width` columns."""
        if not is_dask(x):
            _refuse_frame(x)
            x = check_array(x, dtype=FLOATS, input_name="X")
        else:
            x = x.astype(check_array(_stand_in(x), dtype=FLOATS).dtype)
        if x.shape[1] != width:
            raise ConfigError(f"X has {x.shape[1]} columns, but {type(self).__name__}.transform returns {width}")
        return x

    def _check_options(self) -> None:
        at_least("partitions", self.partitions, 1)
        at_least("max_iter", self.max_iter, 1)
        if not isinstance(self.tol, numbers.Real) or not 0 <= self.tol < math.inf:
            raise ConfigError(f"tol={self.tol!r} is not a number of at least 0")

    def _warn_unless(self, converged: bool) -> None:
        if not converged:
            warnings.warn(
                f"{type(self).__name__} stopped after max_iter={self.max_iter} rounds before it converged: "
                f"raise max_iter or tol={self.tol}",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _apply(
        self, x: Array, function: Callable[..., Any], *arguments: Any, width: int | None, dtype: Any = None
    ) -> Array:
        """`function(rows, *arguments)` on validated rows: immediately, or lazily on each chunk of a dask.array.

        The result has `width` columns, or one value per row if that is None; its dtype is that of the rows by default.
        """
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

    # A client holds connections, which can be neither copied nor pickled. Clones share it; copies have none.

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}

    def __sklearn_clone__(self) -> Self:
        clone: Self = BaseEstimator.__sklearn_clone__(copy.copy(self))
        clone.client = self.client
        return clone


def at_least(name: str, value: object, least: int) -> int:
    """`value` as an int of at least `least`; a `ConfigError` names the option."""
    number = whole_number(name, value)
    if number < least:
        raise ConfigError(f"{name}={number} is less than {least}")
    return number


def _cast(rows: Rows, function: Callable[..., Any], dtype: Any, *arguments: Any) -> Any:
    peak = largest(rows)
    if not math.isfinite(peak):
        assert_all_finite(rows, input_name="X")
    check_range("X", peak)
    return function(rows, *arguments).astype(dtype, copy=False)


def _stand_in(x: Array) -> NDArray[Any]:
    """One row of zeros in place of a dask.array, to validate its width, dtype and feature names here."""
    if x.ndim != 2:
        raise ConfigError(f"X has {x.ndim} dimensions, but 2 are needed: rows and features")
    if math.isnan(x.shape[1]):
        raise ConfigError("X has an unknown number of columns: call X.compute_chunk_sizes() first")
    chunk = type(x._meta)
    if chunk is not np.ndarray:
        raise ConfigError(
            f"chunks of X are {chunk.__name__}s, not NumPy arrays: fill masked arrays, for example with "
            "dask.array.ma.filled(X, 0), and convert others with X.map_blocks"
        )
    return np.zeros((1, x.shape[1]), x.dtype)


def _refuse_frame(x: Array) -> None:
    """Raise `ConfigError` for a Dask DataFrame, which scikit-learn would fetch into this process."""
    if hasattr(type(x), "to_dask_array"):
        raise ConfigError(f"X is a Dask {type(x).__name__}: pass X.to_dask_array(lengths=True)")


@dataclass
class Best(Generic[T]):
    """Keeps the candidate of least cost, and detects convergence.

    Estimates are noisy, so the last candidate need not be the best.
    A round makes progress if it lowers the least cost by more than `tol` of it. After `patience` rounds in a row
    without progress, `offer` returns False.

    >>> best = Best(tol=0.01, patience=2)
    >>> [best.offer(cost, name) for cost, name in [(10, "a"), (9, "b"), (9.5, "c"), (8.99, "d")]]
    [True, True, True, False]
    >>> best.found, best.cost
    ('d', 8.99)
    """

    tol: float
    patience: int
    cost: float = field(default=math.inf, init=False)
    costs: list[float] = field(default_factory=list, init=False)
    """Costs of all candidates, in order."""
    _found: list[T] = field(default_factory=list, init=False)
    _stale: int = field(default=0, init=False)

    def offer(self, cost: float, candidate: T) -> bool:
        """Consider a candidate; return whether another round is worthwhile."""
        self.costs.append(cost)
        self._stale = 0 if self.cost - cost > self.tol * abs(cost) else self._stale + 1
        if cost < self.cost:
            self.cost, self._found = cost, [candidate]
        return not self.converged

    @property
    def converged(self) -> bool:
        """Whether `patience` rounds in a row made no progress."""
        return self._stale >= self.patience

    @property
    def found(self) -> T:
        """The candidate of least cost."""
        return self._found[0]
