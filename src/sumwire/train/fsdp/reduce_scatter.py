"""One FSDP unit's reduce-scatter in compressed form.

FSDP2 hands over a flat input of n rows, one for each rank of the shard group. A row is a tensor of its own (`Stacked`),
so that blocks never straddle shards; its owner adds n payloads and decodes once. So b bits per coordinate go up and
nothing comes down. FSDP2 waits for its reduce-scatter anyway, so all of it runs in the calling thread.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.cost import shard_pays
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.stacked import Stacked, StackedResidual
from sumwire.errors import ConfigError
from sumwire.train.checkpoint import mismatch
from sumwire.train.dtypes import as_reals

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
except ImportError as error:
    raise ConfigError(
        f"torch {torch.__version__} has no FSDPModule.set_custom_reduce_scatter: use torch 2.9 or later"
    ) from error

_log = logging.getLogger(__name__)

_UNIT_BITS, _PLACE_BITS = 14, 20

# Renamed in torch 2.13.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def round_id(call: int, unit: int, place: int) -> int:
    """One for each row of each call, so that no two share random numbers; places count rows over all replicas."""
    if unit >> _UNIT_BITS or place >> _PLACE_BITS:
        raise ConfigError(f"unit {unit} or rank {place} is beyond {1 << _UNIT_BITS} units and {1 << _PLACE_BITS} ranks")
    return (call << _UNIT_BITS | unit) << _PLACE_BITS | place


class Steps(Protocol):
    """What all units of a model share."""

    warmup: int
    statistics: Statistics

    def begin(self, calls: int) -> None:
        """A unit is called that had `calls` calls before."""

    def give_way(self) -> None:
        """Close, because the model is attached again."""


@dataclass(eq=False)
class ShardGroup:
    """What units sharded over the same ranks have in common."""

    group: Group
    codec: Stacked
    first_call: int
    """Where calls begin to count for random numbers: the same at all ranks."""
    workspace: Workspace = field(default_factory=Workspace)


class Unit(ReduceScatter):
    """The reduce-scatter of one FSDP unit: a module with parameters of its own."""

    def __init__(self, state: Steps, shards: ShardGroup, parameters: Any, index: int) -> None:
        self.state, self.shards, self._index = state, shards, index
        self._parameters: Any = weakref.ref(parameters)  # or a state that is kept would keep the model
        self._replica = int(getattr(parameters.mesh_info, "replicate_mesh_rank", None) or 0)
        self._residual: StackedResidual | None = shards.codec.residual()
        self._warned = False
        self.calls = 0
        self.first_call = shards.first_call

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
        factor, ranks = _factor(op), self.shards.group.workers
        output_tensor, input_tensor = as_reals(output_tensor), as_reals(input_tensor)
        self.state.begin(self.calls)
        self.calls += 1
        statistics = self.state.statistics
        plain = input_tensor.nbytes * (ranks - 1) // ranks
        compress = self.calls > self.state.warmup and self._compressible(input_tensor)
        if not compress or not self._coded(output_tensor, input_tensor, factor):
            self._plain(output_tensor, input_tensor, group, op, factor)
            statistics.add_sent(plain)
        statistics.add_values(input_tensor.numel(), plain)

    def _compressible(self, flat: torch.Tensor) -> bool:
        """The same at all ranks, as it depends on nothing but sizes and settings."""
        ranks = self.shards.group.workers
        if not shard_pays(self.shards.codec, ranks, flat.numel(), 8 * flat.element_size()):
            return False
        trained = [p for p in self._parameters().fsdp_params if p.sharded_param.requires_grad]
        whole = ranks * sum(
            p.padded_sharded_param_size.numel() * (2 if p.sharded_param.is_complex() else 1) for p in trained
        )
        if self._residual is None or flat.numel() == whole:
            return True
        # FSDP2 leaves out parameters without a gradient, and nothing tells whose residuals are left over.
        if not self._warned and self.shards.group.rank == 0:
            _log.warning(
                "an FSDP unit got gradients of %d of its %d coordinates; with feedback, such are sent uncompressed: "
                "set_reduce_scatter_unused_params(True) or feedback=False avoids that", flat.numel(), whole,
            )  # fmt: skip
        self._warned = True
        return False

    def _plain(self, output: torch.Tensor, flat: torch.Tensor, group: Any, op: Any, factor: float | None) -> None:
        if factor is not None and op == dist.ReduceOp.PREMUL_SUM:
            flat, op = flat.mul_(factor), dist.ReduceOp.SUM  # which gloo can do, too
        with self.state.statistics.time("exchange"):
            _reduce_scatter(output, flat, op=op, group=group)

    def _coded(self, output: torch.Tensor, flat: torch.Tensor, factor: float | None) -> bool:
        """False, and nothing has changed, if some rank's gradients are not finite."""
        group, work = self.shards.group, self.shards.workspace
        work.statistics = self.state.statistics
        rows = flat.cpu().reshape(group.workers, -1)
        if self._residual is not None and not self._residual.fits(rows):  # other parameters train now
            self._residual = self.shards.codec.residual()
        first = round_id(self.first_call + self.calls - 1, self._index, self._replica * group.workers)
        reduced = Round(
            group, rows, self.shards.codec, round_id=first, residual=self._residual, workspace=work
        ).reduce_scatter(out=work.take("mean", rows.shape[1], np.float32))
        if reduced is None:
            return False
        if factor is not None:
            reduced *= np.float32(group.workers * factor)
        output.copy_(torch.from_numpy(reduced).view(-1))
        return True

    @property
    def _place(self) -> int:
        """Of this rank, among those of all replicas."""
        return self._replica * self.shards.group.workers + self.shards.group.rank

    def state_dict(self) -> dict[str, Any]:
        """What `FSDPState.state_dict` has of this unit."""
        return {
            "codec": self.shards.codec.codec.description(),
            "rank": self._place,
            "calls": self.calls,
            "first_call": self.first_call,
            "residual": None if self._residual is None else self._residual.state_dict(),
        }

    def problem(self, saved: dict[str, Any]) -> str | None:
        """Why a `state_dict` does not fit this unit."""
        return mismatch(saved["codec"], self.shards.codec.codec)

    def load_state_dict(self, saved: dict[str, Any] | None, calls: int) -> bool:
        """Go on from a `state_dict`, or only from a number of calls; False if residuals had to be dropped."""
        self.calls = calls
        if saved is None:
            return True
        self.calls, self.first_call = int(saved["calls"]), int(saved["first_call"])
        if saved["residual"] is None or self._residual is None:
            return saved["residual"] is None
        fits = saved["rank"] == self._place and self.problem(saved) is None
        if fits:
            self._residual.load_state_dict(saved["residual"])
        return fits


def _factor(op: Any) -> float | None:
    """What the sum over the ranks is multiplied by; None for the mean."""
    if op == dist.ReduceOp.AVG:
        return None
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.PREMUL_SUM and isinstance(state := op.__getstate__(), tuple):
        return float(state[1])
    raise ConfigError(f"reduction {op} is not a mean or sum: give set_gradient_divide_factor a number, or omit it")
