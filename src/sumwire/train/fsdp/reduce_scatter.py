"""One FSDP unit's reduce-scatter in compressed form.

FSDP2 hands over a flat input of n rows, one for each rank of the shard group. A row is a tensor of its own (`Stacked`),
so that blocks never straddle shards; its owner adds n payloads and decodes once. So b bits per coordinate go up and
nothing comes down. FSDP2 waits for its reduce-scatter anyway, so all of it runs in the calling thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sumwire.aggregate.group.cost import shard_pays
from sumwire.aggregate.round import Round
from sumwire.codec.tensors import float32_view
from sumwire.errors import ConfigError
from sumwire.train.dtypes import as_reals
from sumwire.train.fsdp.collective import Collective, sum_factor

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
except ImportError as error:
    raise ConfigError(
        f"torch {torch.__version__} has no FSDPModule.set_custom_reduce_scatter: use torch 2.9 or later"
    ) from error

# Renamed in torch 2.13.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CompressedReduceScatter(Collective, ReduceScatter):
    """The reduce-scatter of one FSDP unit: a module with parameters of its own."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for an input or output, as FSDP2 itself would allocate it."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """output = this rank's row, reduced over the ranks. It is complete on return, also if `async_op`."""
        factor, ranks = sum_factor(op), self.peers.group.workers
        output_tensor, input_tensor = as_reals(output_tensor), as_reals(input_tensor)
        self._begin()
        statistics = self.state.statistics
        plain = input_tensor.nbytes * (ranks - 1) // ranks
        compress = self.calls > self.state.warmup and self._compressible(input_tensor)
        if not compress or not self._coded(output_tensor, input_tensor, factor):
            self._plain(output_tensor, input_tensor, group, op, factor)
            statistics.add_sent(plain)
        statistics.add_values(input_tensor.numel(), plain)

    def _compressible(self, flat: torch.Tensor) -> bool:
        """The same at all ranks, as it depends on nothing but sizes and settings."""
        ranks = self.peers.group.workers
        if not shard_pays(self.peers.codec, ranks, flat.numel(), 8 * flat.element_size()):
            return False
        return self._residual is None or self._whole(flat.numel(), ranks)

    def _plain(self, output: torch.Tensor, flat: torch.Tensor, group: Any, op: Any, factor: float | None) -> None:
        if factor is not None and op == dist.ReduceOp.PREMUL_SUM:
            flat, op = flat.mul_(factor), dist.ReduceOp.SUM  # which gloo can do, too
        with self.state.statistics.time("exchange"):
            _reduce_scatter(output, flat, op=op, group=group)

    def _coded(self, output: torch.Tensor, flat: torch.Tensor, factor: float | None) -> bool:
        """False, and nothing has changed, if some rank's gradients are not finite."""
        group, codec, work = self.peers.group, self.peers.codec, self.peers.workspace
        work.statistics = self.state.statistics
        stays = group.carries_tensors and codec.stays_on_device(flat)
        rows = (flat if stays else flat.cpu()).reshape(group.workers, -1)
        if self._residual is not None and not self._residual.fits(rows):  # other parameters train now
            self._residual = codec.residual()
        first = self._round_id(self._mesh.first_row)
        mean = float32_view(output) if stays else None
        if mean is None:
            mean = work.take("mean", rows.shape[1], np.float32, like=rows if stays else None)
        reduced = Round(group, rows, codec, round_id=first, residual=self._residual, workspace=work).reduce_scatter(
            out=mean
        )
        if reduced is None:
            return False
        if factor is not None:
            reduced *= float(np.float32(group.workers * factor))
        row = torch.as_tensor(reduced).view(-1)
        if row.data_ptr() != output.data_ptr():
            output.copy_(row)
        return True
