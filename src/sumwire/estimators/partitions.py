"""Rows in partitions: in this process, or on the workers of a Dask cluster.

Estimators use three methods: `run` a function on every partition, whose results stay there as a `Spread`; `fetch`
bytes from partitions, which are counted; `take` a few rows.
"""

from __future__ import annotations

import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import ConfigError, RoundError
from sumwire.estimators.tiles import LEAST_PEAK, Floats, Rows, check_range, largest, one_blas_thread, powers_of_two

Array = Any
"""Rows as users pass them: a NumPy array or a dask.array."""

MIDDLE_ROWS = 3
"""Rows sent in float64 whose median is the origin for `take`; the median tolerates an outlier."""


@dataclass(frozen=True)
class Spread:
    """One object per partition, kept on the partition: the object itself, or a Dask future."""

    items: tuple[Any, ...]


class Partitions(ABC):
    """Rows in partitions, each of which sends nothing but bytes.

    >>> with split(np.arange(10.0).reshape(5, 2), 2, client=None) as partitions:
    ...     sums = partitions.run(lambda rank, rows: rows.sum().tobytes(), partitions.rows)
    ...     partitions.sizes, [np.frombuffer(data).item() for data in partitions.fetch(sums)]
    ([3, 2], [15.0, 30.0])
    """

    def __init__(self, rows: Iterable[Any], features: int) -> None:
        self.rows, self.features = Spread(tuple(rows)), features
        self.bits = 0
        """Bits that partitions have sent so far."""

    def __len__(self) -> int:
        return len(self.rows.items)

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            # Entered first, so that it is left last, when nothing runs on partitions anymore.
            opening.enter_context(one_blas_thread)
            self._start(opening)
            self._measure()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @abstractmethod
    def _start(self, opening: ExitStack) -> None:
        """Enter the contexts that `run` needs."""

    def _measure(self) -> None:
        measured = np.stack([np.frombuffer(data) for data in self.fetch(self.run(_measure, self.rows))])
        self.sizes: list[int] = measured[:, 0].astype(int).tolist()
        self.peak = float(measured[:, 1].max())
        """The largest magnitude of any value."""
        if not math.isfinite(self.peak):
            bad = np.flatnonzero(~np.isfinite(measured[:, 1]))
            raise ValueError(f"Input X contains NaN or infinity, in {len(bad)} partitions, the first is {bad[0]}")
        check_range("X", self.peak, least=LEAST_PEAK)
        self.unit = float(powers_of_two(self.peak))
        """A unit in which magnitudes are below 2, so that float32 can hold them."""

    @abstractmethod
    def run(self, function: Callable[..., Any], *arguments: Any) -> Spread:
        """`function(rank, *arguments)` on every partition; for a `Spread`, each partition gets its own item."""

    def spread(self, items: Iterable[Any]) -> Spread:
        """Send one object to each partition, to be kept there."""
        return Spread(tuple(items))

    def chunks(self, array: Array) -> Spread:
        """The chunks of a dask.array that has one per partition."""
        raise ConfigError("a dask.array has no partitions in this process: pass a NumPy array")

    @abstractmethod
    def _gather(self, spread: Spread) -> list[bytes]: ...

    def fetch(self, spread: Spread) -> list[bytes]:
        """The bytes that partitions send, in rank order."""
        received = self._gather(spread)
        self.bits += 8 * sum(map(len, received))
        return received

    def take(self, places: NDArray[np.int64]) -> Floats:
        """The rows of X at these indices, which must ascend.

        They are sent in float32, as differences from a median row: far from the origin, float32 could not
        distinguish them.
        """
        few = places[np.linspace(0, len(places) - 1, min(MIDDLE_ROWS, len(places))).astype(int)]
        middle: Floats = np.median(self._take(few, np.zeros(self.features), np.float64), axis=0)
        return self._take(places, middle, np.float32)

    def _take(self, places: NDArray[np.int64], middle: Floats, kind: type[np.floating[Any]]) -> Floats:
        ends = np.cumsum(self.sizes)
        parts = np.split(places, np.searchsorted(places, ends[:-1]))
        local = [part - (end - size) for part, end, size in zip(parts, ends, self.sizes, strict=True)]
        sent = self.fetch(self.run(_pick, self.rows, Spread(tuple(local)), middle, self.unit, kind))
        rows = np.frombuffer(b"".join(sent), kind).reshape(len(places), self.features)
        return middle + rows.astype(np.float64) * self.unit

    def _columns(self, arguments: Iterable[Any]) -> list[Sequence[Any]]:
        """The ranks, and the values of each argument for every rank."""
        return [range(len(self)), *(a.items if isinstance(a, Spread) else (a,) * len(self) for a in arguments)]


class LocalPartitions(Partitions):
    """Partitions of an array in this process, on as many threads as there are cores."""

    def __init__(self, rows: Rows, count: int) -> None:
        super().__init__(np.array_split(rows, count), rows.shape[1])

    def _start(self, opening: ExitStack) -> None:
        threads = min(len(self), os.cpu_count() or 1)
        self._pool = opening.enter_context(ThreadPoolExecutor(threads, "sumwire-partition"))

    def run(self, function: Callable[..., Any], *arguments: Any) -> Spread:
        return Spread(tuple(self._pool.map(function, *self._columns(arguments))))

    def _gather(self, spread: Spread) -> list[bytes]:
        return list(spread.items)


class DaskPartitions(Partitions):
    """Partitions on the workers of a cluster. Dask places them, and picks a worker for every call."""

    def __init__(self, rows: Iterable[Any], features: int, client: Any) -> None:
        self._client = client
        super().__init__(rows, features)

    def _start(self, opening: ExitStack) -> None:
        """Nothing to do: the client is running."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> Spread:
        # As a task, so that each worker gets them once. Scattered data would be lost with its worker.
        shared = [
            self._client.submit(_itself, a, pure=False) if isinstance(a, np.ndarray | bytes) else a for a in arguments
        ]
        # Not pure: otherwise Dask would hash all arguments to look for an earlier result of the same call.
        return Spread(tuple(self._client.map(function, *self._columns(shared), pure=False)))

    def spread(self, items: Iterable[Any]) -> Spread:
        return Spread(tuple(self._client.submit(_itself, item, pure=False) for item in items))

    def chunks(self, array: Array) -> Spread:
        return Spread(tuple(_chunks(array, self._client)))

    def _gather(self, spread: Spread) -> list[bytes]:
        try:
            received: list[bytes] = self._client.gather(list(spread.items))
        except CancelledError as error:
            raise RoundError(
                "Dask canceled the tasks of a round: a worker was lost, with the rows that had been sent to it. "
                "Fit again, or pass X as a dask.array, whose chunks Dask can recompute"
            ) from error
        return received


def is_dask(x: Array) -> bool:
    """Whether x is a dask.array; does not import Dask."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(x, module.Array)


def split(x: Array, count: int, client: Any) -> Partitions:
    """Split rows into partitions: `count` nearly equal parts of a NumPy array, or the row chunks of a dask.array.

    A dask.array stays on the cluster; a NumPy array is sent there if there is a client.
    """
    if is_dask(x):
        client = _client(client, "X is a dask.array")
        return DaskPartitions(_chunks(x.rechunk({1: -1}), client), x.shape[1], client)
    count = min(count, len(x))
    if client is None:
        return LocalPartitions(x, count)
    client = _client(client, f"client={client!r}")
    parts = client.scatter(np.array_split(x, count), hash=False)
    return DaskPartitions(parts, x.shape[1], client)


def _chunks(array: Array, client: Any) -> list[Any]:
    """Futures of the chunks, which stay on the cluster."""
    futures: list[Any] = client.compute(list(client.persist(array).to_delayed(optimize_graph=False).ravel()))
    return futures


def _client(client: Any, because: str) -> Any:
    """A running client: the given one, or the current client of this thread."""
    import distributed

    if client is None:
        try:
            client = distributed.get_client()
        except ValueError:
            raise ConfigError(f"{because}, and there is no Dask client: pass client=distributed.Client(...)") from None
    if not isinstance(client, distributed.Client) or client.asynchronous:
        raise ConfigError(f"client={client!r} is not a distributed.Client(asynchronous=False), nor None")
    if client.status != "running":
        raise ConfigError(f"client={client!r} is {client.status}, not running: pass a new distributed.Client(...)")
    return client


def _itself(value: Any) -> Any:
    return value


def _measure(rank: int, rows: Rows) -> bytes:
    """The number of rows, and their largest magnitude, which is not finite if any value is not."""
    return np.array([len(rows), largest(rows)], np.float64).tobytes()


def _pick(
    rank: int, rows: Rows, places: NDArray[np.int64], middle: Floats, unit: float, kind: type[np.floating[Any]]
) -> bytes:
    return ((rows[places] - middle) / unit).astype(kind).tobytes()
