"""Weights of rows: validated, kept on the partitions of their rows, and drawn from for the first centers."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from sumwire.errors import ConfigError
from sumwire.estimators.partitions import Array, Partitions, Spread, is_dask
from sumwire.estimators.tiles import Floats, check_range, powers_of_two

LIMITS = "weights must be finite numbers of at least 0"


def check_weights(x: Array, given: Any) -> Any:
    """`sample_weight` as one float64 per row of the validated X: an array, a dask.array if both are, or None.

    Values of a dask.array are checked on the cluster, when they are used.
    """
    if given is None:
        return None
    if is_dask(x) and isinstance(given, numbers.Real):
        given = x[:, 0].map_blocks(np.full_like, fill_value=float(given), dtype=x.dtype)
    elif isinstance(given, numbers.Real):
        given = np.full(len(x), float(given))
    lazy = is_dask(x) and is_dask(given)
    weights = given if lazy else np.asarray(given)
    if weights.ndim != 1:
        raise ConfigError(f"sample_weight has {weights.ndim} dimensions: pass a number, or one weight per row of X")
    if lazy:
        return _aligned(x, weights.astype(np.float64))
    weights = check_array(weights, dtype=np.float64, ensure_2d=False, ensure_all_finite=False)
    _check_length(len(weights), x.shape[0])
    check_extremes(weights.min(), weights.max())
    return weights


def check_extremes(least: float, most: float) -> None:
    """Raise `ConfigError` if weights between these two are invalid, or all 0."""
    _check_values(least, most)
    if most == 0:
        # The first words are those of scikit-learn.
        raise ConfigError("Sample weights must contain at least one non-zero number: all rows have weight 0")


def _check_values(least: float, most: float) -> None:
    if not math.isfinite(least) or not math.isfinite(most):
        raise ConfigError(f"sample_weight contains NaN or infinity: {LIMITS}")
    if least < 0:
        raise ConfigError(f"sample_weight contains {least:g}: {LIMITS}")
    check_range("sample_weight", most)


def _aligned(x: Array, weights: Array) -> Array:
    """A dask.array of weights in the chunks of X. Where sizes are unknown, partitions compare them."""
    rows, sizes = x.chunks[0], weights.chunks[0]
    if not any(map(math.isnan, (*rows, *sizes))):
        _check_length(weights.shape[0], x.shape[0])
        return weights.rechunk((rows,))
    if len(rows) != len(sizes):
        raise ConfigError(
            f"sample_weight has {len(sizes)} chunks and X has {len(rows)}, of unknown sizes: give both the same "
            "chunks, or call compute_chunk_sizes() on both"
        )
    return weights


def _check_length(weights: int, rows: float) -> None:
    if not math.isnan(rows) and weights != rows:
        raise ConfigError(f"sample_weight has {weights} values, but X has {rows} rows: pass one weight per row")


def weighted_sum(values: Array, weights: Any) -> float:
    """The sum of one value per row, each multiplied by its weight; validates the weights of a dask.array."""
    if weights is None:
        return float(values.sum())
    if is_dask(weights):
        # Both have the same chunks, so that one task per chunk multiplies them.
        return float(values.map_blocks(_multiply, weights, dtype=np.float64, meta=np.empty(0)).sum())
    values = np.asarray(values)
    _check_length(len(weights), len(values))
    return float(values @ weights)


def _multiply(values: Floats, weights: Floats) -> Floats:
    _check_length(len(weights), len(values))
    if len(weights):
        _check_values(weights.min(), weights.max())
    return values * weights


class RowWeights:
    """The weights of the rows of partitions.

    They are kept in a unit in which they are about 1 on average, so that weighted sums are about as large as sums of
    rows. Weights that are all the same are a unit and no weights, so they give the same clusters as no weights.
    """

    def __init__(self, partitions: Partitions, given: Any) -> None:
        """From what `check_weights` returned."""
        self._partitions = partitions
        self.spread = Spread((None,) * len(partitions))
        """The weights of each partition, in units; None for partitions whose rows all weigh 1."""
        self.unit = 1.0
        self.positive = sum(partitions.sizes)
        """Number of rows that have a weight above 0."""
        self.given = False
        """Whether rows have different weights."""
        if given is not None:
            self._measure(partitions.chunks(given) if is_dask(given) else self._split(given))

    def _split(self, weights: Floats) -> Spread:
        sizes = self._partitions.sizes
        _check_length(len(weights), sum(sizes))
        return self._partitions.spread(np.split(weights, np.cumsum(sizes)[:-1]))

    def _measure(self, weights: Spread) -> None:
        partitions = self._partitions
        measured = np.stack([np.frombuffer(data) for data in partitions.fetch(partitions.run(_measure, weights))])
        for rank, (size, rows) in enumerate(zip(measured[:, 0].astype(int), partitions.sizes, strict=True)):
            if size != rows:
                raise ConfigError(f"chunk {rank} of sample_weight has {size} values, but that of X has {rows} rows")
        full = measured[measured[:, 0] > 0]
        least, most = float(full[:, 1].min()), float(full[:, 2].max())
        check_extremes(least, most)
        if least == most:
            self.unit = most
            return
        self.positive, self.given = int(measured[:, 3].sum()), True
        self.unit = float(powers_of_two(measured[:, 4].sum() / sum(partitions.sizes)))
        self.spread = partitions.run(_in_units, weights, self.unit)

    def draw(self, wanted: int, seed: int) -> tuple[NDArray[np.int64], Floats]:
        """Rows drawn one after another without replacement, each with a chance proportional to its weight.

        Returns their indices, which ascend, and weights with which they represent all rows, without bias. Each row has
        the key weight / e for its own random e of the exponential distribution, and the `wanted` largest keys win
        (Efraimidis and Spirakis 2006): a row wins with the chance 1 - exp(-weight / t) if t is the largest key that
        loses, so its weight is divided by that.
        """
        partitions = self._partitions
        sent = partitions.fetch(partitions.run(_largest_keys, self.spread, wanted + 1, seed))
        keys = np.sort(np.concatenate([np.frombuffer(data) for data in sent]))[::-1]
        threshold = float(keys[wanted]) if len(keys) > wanted else 0.0
        places, weights, first = [], [], 0
        for data, size in zip(
            partitions.fetch(partitions.run(_winners, self.spread, threshold, seed)), partitions.sizes, strict=True
        ):
            local, own = np.split(np.frombuffer(data), 2)
            places.append(local.astype(np.int64) + first)
            weights.append(own)
            first += size
        won = np.concatenate(weights)
        return np.concatenate(places), won / -np.expm1(-won / threshold) if threshold else won


# Functions that run on partitions.


def _measure(rank: int, weights: Floats) -> bytes:
    """Their number, least, most, number above 0, and sum."""
    least, most = (weights.min(), weights.max()) if len(weights) else (0, 0)
    return np.array([len(weights), least, most, np.count_nonzero(weights), weights.sum()], np.float64).tobytes()


def _in_units(rank: int, weights: Floats, unit: float) -> Floats:
    return weights / unit


def _keys(rank: int, weights: Floats, seed: int) -> Floats:
    return weights / np.random.default_rng([seed, rank]).standard_exponential(len(weights))


def _largest_keys(rank: int, weights: Floats, count: int, seed: int) -> bytes:
    keys = _keys(rank, weights, seed)
    return np.sort(keys[keys > 0])[-count:].tobytes()


def _winners(rank: int, weights: Floats, threshold: float, seed: int) -> bytes:
    won = np.flatnonzero(_keys(rank, weights, seed) > threshold)
    return np.concatenate([won.astype(np.float64), weights[won]]).tobytes()
