"""What the tests of a process group average, and a group that offers as little as an adder in the network does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sumwire import Codec
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from sumwire.aggregate.rounds import RoundsInFlight

Floats = NDArray[np.float32]


def gradient(rank: int, size: int, seed: int = 0) -> Floats:
    """Noise whose scale varies along it, as that of layers does."""
    rng = np.random.default_rng((seed, rank, size))
    scale = np.exp(rng.standard_normal(size // 700 + 1)).repeat(700)[:size]
    return (rng.standard_normal(size) * scale).astype(np.float32)


def sparse(rank: int, size: int, density: float, seed: int = 0) -> Floats:
    """Some non-zeros, among them what floats have to offer."""
    rng = np.random.default_rng((seed, rank, size))
    x = np.where(rng.random(size) < density, rng.standard_normal(size), 0).astype(np.float32)
    if size > 100:
        odd = [np.nan, np.inf, -np.inf, -0.0, 1e-45, -3e38, 3e38]
        x[rng.integers(0, size, len(odd))] = odd
        x[[7, 8]] = -0.0, np.inf  # at every rank
    return x


def in_rank_order(xs: list[Floats]) -> Floats:
    """The mean whose bits the lossless codecs promise."""
    total = xs[0].copy()
    with np.errstate(all="ignore"):
        for x in xs[1:]:
            total += x
        mean: Floats = total / np.float32(len(xs))
    return mean


@contextmanager
def rounds_over(codec: Codec, **options: Any) -> Iterator[RoundsInFlight]:
    """Rounds in flight over a group of all ranks."""
    rounds = RoundsInFlight(Group(codec, **options))
    try:
        yield rounds
    finally:
        rounds.end(None)


def averages(rounds: RoundsInFlight, tensors: list[Any]) -> list[Any]:
    """The means, by rounds 0, 1, ... that are all in flight at once."""
    aggregator = rounds.aggregator
    submitted = [
        rounds.submit(Round(aggregator, tensor, aggregator.codec, round_id=number))
        for number, tensor in enumerate(tensors)
    ]
    return [future.result() for future in submitted]


class SumOnly(dist.ProcessGroup):
    """As little as an in-network adder offers: int32 and float32 all-reduce by SUM and MAX."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.inner = dist.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors: Any, options: Any) -> Any:
        assert tensors[0].dtype in (torch.int32, torch.float32)
        assert any(options.reduceOp == op for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX))
        return self.inner.allreduce(tensors, options)

    def getBackendName(self) -> str:
        return "sum_only"


def register_sum_only() -> str:
    """The name of its backend, in the calling process."""
    dist.Backend.register_backend("sum_only", SumOnly, devices=["cpu"])
    return "sum_only"
