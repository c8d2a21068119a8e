"""Gradients of small tensors, averaged exactly: beside their span's terms, or all of a step in one round."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from sumwire.train.rounds import when_done


@dataclass(eq=False)
class _Values:
    """Of one dtype and device, behind one another."""

    pieces: list[torch.Tensor] = field(default_factory=list)
    size: int = 0
    means: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Piece:
    """What was taken from one span."""

    gradients: torch.Tensor
    positions: torch.Tensor
    _values: _Values
    _start: int
    by_join: bool = False
    """Whether they are averaged when the terms of their span are joined."""

    @property
    def means(self) -> torch.Tensor:
        """Of all values that are averaged together; until then, these values."""
        assert self._values.means is not None
        return self._values.means

    def put_back(self) -> None:
        """Write the means where the values were."""
        self.gradients[self.positions] = self.means[self._start : self._start + len(self.positions)]
        if self.gradients.is_cuda:  # or positions and means could be reused before they are read
            torch.cuda.current_stream(self.gradients.device).synchronize()


def take_for_join(gradients: torch.Tensor, positions: torch.Tensor) -> Piece:
    """Take values out of a span, leaving zeros for the codec; they travel when the span's terms are joined."""
    return Piece(gradients, positions, _Values(means=_taken(gradients, positions)), 0, by_join=True)


def _taken(gradients: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    values = gradients[positions]
    gradients[positions] = 0
    return values


class ExactValues:
    """Collects values span by span; at the end of the step, averages them."""

    def __init__(self) -> None:
        self.averaged: Future[None] = Future()
        """Done when pieces can be put back."""
        self._values: dict[tuple[torch.dtype, torch.device], _Values] = {}

    def take(self, gradients: torch.Tensor, positions: torch.Tensor) -> Piece:
        """Take values out of a span, leaving zeros for the codec."""
        values = self._values.setdefault((gradients.dtype, gradients.device), _Values())
        piece = Piece(gradients, positions, values, values.size)
        values.pieces.append(_taken(gradients, positions))
        values.size += len(positions)
        return piece

    def average(self, submit: Callable[[torch.Tensor], Future[Any]]) -> list[Future[Any]]:
        """Nothing more will be taken: average all there is."""
        rounds = []
        for values in self._values.values():
            values.means = torch.cat(values.pieces)
            values.pieces.clear()
            rounds.append(submit(values.means))
        when_done(rounds, self.averaged)
        return rounds
