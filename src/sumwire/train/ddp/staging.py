"""Gradients that come in other buckets than the layout's wait here until theirs is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from sumwire.errors import MismatchError
from sumwire.train.ddp.layout import Bucket
from sumwire.train.rounds import when_done


class Staging:
    """Copies of the layout's buckets, filled gradient by gradient, and read back when averaged."""

    def __init__(self, buckets: Sequence[Bucket], average: Callable[[Bucket, torch.Tensor], list[Future[Any]]]) -> None:
        self._buckets = buckets
        self._average = average
        self._home = {name: index for index, bucket in enumerate(buckets) for name in bucket.names}
        self._flat: dict[int, torch.Tensor] = {}
        self._arrived: dict[int, set[str]] = {}
        self._averaged: dict[int, Future[None]] = {}

    def put(self, gradients: dict[str, torch.Tensor]) -> list[Future[Any]]:
        """Take these gradients; when all futures are done, `take` has their means."""
        unknown = sorted(gradients.keys() - self._home.keys())
        if unknown:
            raise MismatchError(
                f"parameter {unknown[0]!r} is not in the saved layout: resume with the model (and, without names, the "
                "bucket_cap_mb) that the state was saved with, or start a new state"
            )
        homes = sorted({self._home[name] for name in gradients})
        waiting = [self._averaged.setdefault(index, Future()) for index in homes]
        for name, gradient in gradients.items():
            self._view(name, gradient).copy_(gradient.view(-1))
            self._arrived.setdefault(self._home[name], set()).add(name)
        for index in homes:
            if len(self._arrived[index]) == len(self._buckets[index].names):
                del self._arrived[index]
                when_done(self._average(self._buckets[index], self._flat[index]), self._averaged.pop(index))
        return waiting

    def take(self, gradients: dict[str, torch.Tensor]) -> None:
        """Read the means of these gradients."""
        for name, gradient in gradients.items():
            gradient.view(-1).copy_(self._view(name, gradient))

    def check_complete(self) -> None:
        """After the last bucket of a step, nothing may still wait for a gradient."""
        for index, arrived in self._arrived.items():
            missing = sorted(set(self._buckets[index].names) - arrived)
            raise MismatchError(
                f"parameter {missing[0]!r} of the saved layout has no gradient in this model: resume with the model "
                "that the state was saved with, or start a new state"
            )

    def _view(self, name: str, like: torch.Tensor) -> torch.Tensor:
        index = self._home[name]
        bucket = self._buckets[index]
        flat = self._flat.get(index)
        if flat is None:
            flat = self._flat[index] = torch.empty(bucket.size, dtype=like.dtype, device=like.device)
        start = bucket.starts[name]
        size = bucket.sizes[bucket.names.index(name)]
        if size != like.numel():
            raise MismatchError(
                f"parameter {name!r} has {like.numel()} values, the saved layout {size}: resume with the model that "
                "the state was saved with, or start a new state"
            )
        return flat[start : start + size]
