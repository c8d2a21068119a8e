"""Rounds of a process group: an all-reduce in place, and a reduce-scatter, with the sum or the mean as their result."""

from __future__ import annotations

import numpy as np
import torch

from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.private import PrivateGroup
from sumwire.aggregate.round import Round
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.algebra import Floats, Sum
from sumwire.codec.base import Codec
from sumwire.codec.stacked import Stacked
from sumwire.codec.tensors import Tensor
from sumwire.errors import RoundError
from sumwire.train.rounds import TensorRound


class AllReduceRound(TensorRound):
    """Reduces a tensor in place. One that some rank cannot encode, and every one if there is no codec, exactly.

    Halves are rounded once, after the last operation.
    """

    def __init__(
        self,
        group: PrivateGroup,
        tensor: torch.Tensor,
        codec: Codec | None,
        *,
        round_id: int,
        mean: bool,
        statistics: Statistics,
    ) -> None:
        self._target = tensor.detach()
        in_place = tensor.is_contiguous() and not tensor.is_neg()
        # Values in the order of their indices: ranks may have them in other strides.
        flat = self._target.view(-1) if in_place else self._target.resolve_neg().reshape(-1).clone()
        super().__init__(group, flat, codec, round_id=round_id, statistics=statistics)
        self._group, self._in_place, self._divides = group, in_place, mean

    def agree(self) -> None:
        self._join()
        if self.exact:
            self._group.sum_exactly(self.tensor, round_id=self.round_id, workspace=self.workspace)
            self._mean = self.tensor.div_(self._group.workers) if self._divides else self.tensor

    def _decode(self, total: Sum) -> Floats:
        result = super()._decode(total)
        return result if self._divides else np.multiply(result, np.float32(self._group.workers), out=result)

    def store(self, mean: Tensor) -> None:
        super().store(mean)
        if not self._in_place:
            self._target.copy_(self.tensor.view(self._target.shape))


class ReduceScatterRound(Round):
    """Row r of everyone's input, reduced, is the output of rank r."""

    def __init__(
        self,
        group: PrivateGroup,
        rows: torch.Tensor,
        output: torch.Tensor,
        codec: Stacked | None,
        *,
        round_id: int,
        mean: bool,
        statistics: Statistics,
    ) -> None:
        super().__init__(group, rows, codec, round_id=round_id, workspace=Workspace(statistics=statistics))
        self._group, self._output, self._divides = group, output.detach(), mean
        self._reduced: torch.Tensor | None = None

    def agree(self) -> None:
        self._join()
        if self.exact:
            whole = self.x.clone(memory_format=torch.contiguous_format)
            self._group.sum_exactly(whole, round_id=self.round_id, workspace=self.workspace)
            row = whole[self._group.rank]
            self._reduced = row.div_(self._group.workers) if self._divides else row

    def add(self) -> None:
        if self._reduced is not None:
            return
        if self._payload is None:
            raise RoundError(self._reason)
        self._total = self._group.add_shard(self._payload, workspace=self.workspace)

    def decode(self) -> torch.Tensor:
        ranks = self._group.workers
        if self._reduced is None:
            assert self._total is not None
            with self.workspace.statistics.time("decode"):
                row = self.codec.decode(
                    self._total, out=self.workspace.take("mean", self.x[0].numel(), np.float32)
                ).reshape(-1)
                self._reduced = torch.from_numpy(row if self._divides else row * np.float32(ranks))
        self._output.copy_(self._reduced.view(self._output.shape))
        self.workspace.statistics.add_values(self.x.numel(), self.x.nbytes * (ranks - 1) // ranks)
        return self._output
