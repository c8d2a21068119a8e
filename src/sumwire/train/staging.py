"""Gradients that come in other buckets than the layout's wait here until theirs is full."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sumwire.errors import MismatchError
from sumwire.train.layout import Bucket

Done = Callable[[BaseException | None], None]


@dataclass(eq=False)
class _Waiting:
    """A bucket of DDP's: its gradients by name, and how many layout buckets they wait for."""

    gradients: dict[str, torch.Tensor]
    missing: set[int]
    done: Done


class Staging:
    """Copies of the layout's buckets, filled gradient by gradient, and read back when averaged."""

    def __init__(self, buckets: Sequence[Bucket], average: Callable[[Bucket, torch.Tensor, Done], None]) -> None:
        self._buckets = buckets
        self._average = average
        self._home = {name: index for index, bucket in enumerate(buckets) for name in bucket.names}
        self._flat: dict[int, torch.Tensor] = {}
        self._arrived: dict[int, set[str]] = {}
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()

    def put(self, gradients: dict[str, torch.Tensor], done: Done) -> None:
        """Take these gradients; `done` is called when all hold their means."""
        unknown = sorted(gradients.keys() - self._home.keys())
        if unknown:
            raise MismatchError(
                f"parameter {unknown[0]!r} is not in the saved layout: resume with the model (and, without names, the "
                "bucket_cap_mb) that the state was saved with, or start a new state"
            )
        homes = {self._home[name] for name in gradients}
        with self._lock:
            self._waiting.append(_Waiting(gradients, homes, done))
        for name, gradient in gradients.items():
            self._view(self._home[name], name, gradient).copy_(gradient.view(-1))
            self._arrived.setdefault(self._home[name], set()).add(name)
        for index in sorted(homes):
            if len(self._arrived[index]) == len(self._buckets[index].names):
                del self._arrived[index]
                self._start(index)

    def check_complete(self) -> None:
        """After the last bucket of a step, nothing may still wait for a gradient."""
        for index, arrived in self._arrived.items():
            missing = sorted(set(self._buckets[index].names) - arrived)
            raise MismatchError(
                f"parameter {missing[0]!r} of the saved layout has no gradient in this model: resume with the model "
                "that the state was saved with, or start a new state"
            )

    def _start(self, index: int) -> None:
        self._average(self._buckets[index], self._flat[index], lambda error: self._averaged(index, error))

    def _averaged(self, index: int, error: BaseException | None) -> None:
        with self._lock:
            affected = [waiting for waiting in self._waiting if index in waiting.missing]
            for waiting in affected:
                waiting.missing.discard(index)
            finished = [waiting for waiting in affected if error or not waiting.missing]
            self._waiting = [waiting for waiting in self._waiting if waiting not in finished]
        for waiting in finished:
            if error is None:
                for name, gradient in waiting.gradients.items():
                    gradient.view(-1).copy_(self._view(self._home[name], name, gradient))
            waiting.done(error)

    def _view(self, index: int, name: str, like: torch.Tensor) -> torch.Tensor:
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
