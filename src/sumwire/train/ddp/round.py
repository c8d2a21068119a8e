"""The rounds of one span of gradients, and how rounds are numbered."""

from __future__ import annotations

import logging
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.algebra import Payload, Terms
from sumwire.codec.base import Codec
from sumwire.codec.tensors import Tensor
from sumwire.train.ddp.layout import Span
from sumwire.train.rounds import TensorRound

_log = logging.getLogger(__name__)

SAMPLE = 1 << 18
"""Coordinates of which a sampled round measures the error."""

_NUMBER_BITS, _PART_BITS = 22, 2
"""Of a round's id: which span of a step it averages, and what of it."""


class Part(IntEnum):
    """What a round averages."""

    OTHER = 0
    """Something that is not in the layout."""
    SPAN = 2
    SAMPLE = 3
    """Some coordinates of a span exactly, to measure the error."""


class RoundIds:
    """Numbers rounds: for the aggregator, and for the random numbers in them."""

    def __init__(self, aggregator: Aggregator, *, first_step: int, next_round: int) -> None:
        self._aggregator = aggregator
        self.first_step = first_step
        """Where steps begin to count for random numbers."""
        self.next_round = next_round
        """Where an aggregator wants rounds in ascending order."""
        self._step = 0
        self._others = 0

    def begin_step(self, step: int) -> None:
        """Numbers from now on are of this step."""
        self._step, self._others = step, 0

    def other(self) -> int:
        """The number of something that is not in the layout."""
        self._others += 1
        return self._others - 1 | 1 << _NUMBER_BITS - 1

    def noise(self, number: int, part: Part) -> int:
        """Decides a round's random numbers: by its place in the layout, in whatever order DDP hands buckets over."""
        return (self.first_step + self._step) << _NUMBER_BITS + _PART_BITS | number << _PART_BITS | part

    def round(self, number: int, part: Part) -> int:
        """By which the aggregator knows a round."""
        if not self._aggregator.ascending:
            return self.noise(number, part)
        self.next_round += 1
        return self.next_round - 1


class GradientRound(TensorRound):
    """Averages a span in place. Small tensors in it are averaged exactly: `along`, or in another round."""

    def __init__(
        self,
        aggregator: Aggregator,
        span: Span,
        gradients: torch.Tensor,
        codec: Codec,
        *,
        round_id: int,
        noise_id: int,
        statistics: Statistics,
    ) -> None:
        super().__init__(
            aggregator,
            gradients,
            codec,
            round_id=round_id,
            noise_id=noise_id,
            statistics=statistics,
            residual=span.residual,
        )
        self._span = span
        self.sample_id: int | None = None
        """The round in which some coordinates are also averaged exactly, to measure the error."""
        self._truth: NDArray[np.float32] | None = None

    def encode(self, terms: Terms) -> Payload | None:
        if self.sample_id is not None and terms.encodable:
            self._truth = torch.as_tensor(self._source).view(-1)[:SAMPLE].float().clone().cpu().numpy()
        payload = super().encode(terms)
        if payload is not None and self._span.residual is not None and self._span.exact is not None:
            held = torch.as_tensor(self._span.residual.value)  # which shares its memory
            held[self._span.exact_on(held.device)] = 0  # noise of zeros
        if terms.choice != self._span.choice:
            self._span.choice = terms.choice
            if self.aggregator.rank == 0:
                _log.info("span %d, %d values: %s", self._span.number, terms.size, terms.choice)
        return payload

    def add(self) -> None:
        super().add()
        if self.behind:
            self._truth = None
        if self._truth is not None and self.sample_id is not None:
            self._truth = self.aggregator.average_exactly(
                self._truth, round_id=self.sample_id, workspace=self.workspace
            )

    def store(self, mean: Tensor) -> None:
        if self._truth is not None:
            self.workspace.statistics.sample(mean.view(-1)[: len(self._truth)].float().cpu().numpy(), self._truth)
        super().store(mean)
