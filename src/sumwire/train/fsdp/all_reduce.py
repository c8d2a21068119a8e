"""One FSDP unit's all-reduce between replicas (HSDP) in compressed form.

On a mesh of two dimensions FSDP2 first reduce-scatters within a replica, then all-reduces every shard with the same
shard of the other replicas. torch has no extension point for the latter: `set_all_reduce_hook` adds a step after it.
But all that FSDP2 asks of the process group between replicas is `size` and `allreduce`, by way of
`torch.distributed.all_reduce`. So every unit's record of its mesh gets a `ReplicaGroup` in place of that group, and the
rest stays torch's: what it divides by and when, dtypes, gradient accumulation (`set_requires_all_reduce`), streams,
and hooks. Groups that the user gets from the mesh are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from sumwire.aggregate.group.cost import pays
from sumwire.aggregate.statistics import Statistics
from sumwire.train.fsdp.collective import Collective, sum_factor
from sumwire.train.rounds import TensorRound

_HALVES = (torch.float16, torch.bfloat16)


class CompressedAllReduce(Collective):
    """The all-reduce of one FSDP unit's shard: payloads to owners, who add, narrow sums back, as in DDP."""

    def __call__(self, tensor: torch.Tensor, plain: dist.ProcessGroup, options: Any) -> None:
        """Reduce the tensor in place; exact steps are torch's own, over the plain group."""
        factor, ranks = sum_factor(options.reduceOp), self.peers.group.workers
        flat = tensor.view(-1)
        self._begin()
        statistics, plain_sent = self.state.statistics, 2 * flat.nbytes * (ranks - 1) // ranks
        if self.calls > self.state.warmup and self._compressible(flat):
            self._average(flat, factor)
        else:
            with statistics.time("exchange"):
                plain.allreduce([tensor], options).wait()
            statistics.add_sent(plain_sent)
        # The reduce-scatter has counted the values, where there is one: not in replicas of one rank each.
        statistics.add_values(flat.numel() if self._mesh.shards == 1 else 0, plain_sent)

    def _compressible(self, flat: torch.Tensor) -> bool:
        """The same at all ranks, as it depends on nothing but sizes and settings."""
        if not pays(self.peers.codec, self.peers.group.workers, flat.numel(), 8 * flat.element_size()):
            return False
        return self._residual is None or self._whole(flat.numel(), 1)

    def _average(self, flat: torch.Tensor, factor: float | None) -> None:
        """NaN or Inf at any replica make all of them average exactly, so that all see the same."""
        # Halves are rounded once, after the last operation.
        values = flat.float() if flat.dtype in _HALVES else flat
        if self._residual is not None and not self._residual.fits(values):  # other parameters train now
            self._residual = self.peers.codec.residual()
        cost = Statistics()  # whose values are counted above
        TensorRound(
            self.peers.group,
            values,
            self.peers.codec,
            round_id=self._round_id(self._mesh.reduced_shard),
            statistics=cost,
            residual=self._residual,
            buffers=self.peers.workspace.buffers,
        ).run()
        self.state.statistics.add_cost(cost)
        if factor is not None:
            values *= self.peers.group.workers * factor
        if values is not flat:
            flat.copy_(values)


class ReplicaGroup:
    """Stands in for the process group between replicas: all is as there, but `allreduce` is compressed.

    It equals that group, so that torch finds its name, ranks and backend: an error in a collective would otherwise come
    out as torch's complaint, while it logs the error, that it does not know the group.
    """

    def __init__(self, plain: dist.ProcessGroup, all_reduce: CompressedAllReduce) -> None:
        self.plain, self._all_reduce = plain, all_reduce

    def allreduce(self, tensors: Sequence[torch.Tensor], options: Any) -> None:
        """Reduce in place. It is complete on return, so there is nothing to wait for."""
        for tensor in tensors:
            self._all_reduce(tensor, self.plain, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.plain

    def __hash__(self) -> int:
        return hash(self.plain)


def plain_group(group: Any) -> dist.ProcessGroup:
    """The process group that a `ReplicaGroup` stands in for, or the group itself."""
    plain: dist.ProcessGroup = group.plain if isinstance(group, ReplicaGroup) else group
    return plain
