"""The round of one span of gradients."""

from __future__ import annotations

import logging

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.base import Codec, Payload, Terms
from sumwire.codec.tensors import Tensor
from sumwire.train.ddp.layout import Span
from sumwire.train.rounds import TensorRound

_log = logging.getLogger(__name__)

SAMPLE = 1 << 18
"""Coordinates of which a sampled round measures the error."""


class GradientRound(TensorRound):
    """Averages a span in place. Small tensors in it are averaged exactly by a round before, into `exact_means`."""

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
        exact_means: torch.Tensor | None,
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
        self._span, self._exact_means = span, exact_means
        self.sample_id: int | None = None
        """The round in which some coordinates are also averaged exactly, to measure the error."""
        self._truth: NDArray[np.float32] | None = None

    def load(self) -> None:
        super().load()
        if self._span.exact is not None:
            self.x[self._span.exact] = 0  # the codec sees zeros where values are sent apart

    def encode(self, terms: Terms) -> Payload | None:
        if self.sample_id is not None and terms.encodable:
            self._truth = torch.as_tensor(self._source).view(-1)[:SAMPLE].float().clone().numpy()
        payload = super().encode(terms)
        if payload is not None and self._span.residual is not None and self._span.exact is not None:
            self._span.residual.value[self._span.exact.numpy()] = 0  # noise of zeros
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
            self.workspace.statistics.sample(mean.view(-1)[: len(self._truth)].float().numpy(), self._truth)
        super().store(mean)
        if self._span.exact is not None:
            assert self._exact_means is not None
            self.tensor[self._span.exact] = self._exact_means.to(self.tensor)
