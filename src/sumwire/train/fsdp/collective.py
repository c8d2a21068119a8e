"""What both collectives of an FSDP unit have: counted calls, a residual, and their part of a checkpoint."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist

from sumwire.aggregate.statistics import Statistics
from sumwire.errors import ConfigError
from sumwire.train.checkpoint import mismatch
from sumwire.train.fsdp.peers import Peers

_log = logging.getLogger(__name__)

_UNIT_BITS, _PLACE_BITS = 14, 20


def round_id(call: int, unit: int, place: int) -> int:
    """One for each tensor that is averaged in a call, so that no two share random numbers (see `Mesh`)."""
    if unit >> _UNIT_BITS or place >> _PLACE_BITS:
        raise ConfigError(f"unit {unit} or rank {place} is beyond {1 << _UNIT_BITS} units and {1 << _PLACE_BITS} ranks")
    return (call << _UNIT_BITS | unit) << _PLACE_BITS | place


@dataclass(frozen=True)
class Mesh:
    """Where this rank is among replicas and shards, and the places of tensors: their share of a round's number.

    The rows that a replica reduce-scatters have the places replica * shards..., one for each; the shards that replicas
    all-reduce have those behind all rows.
    """

    replicas: int
    shards: int
    replica: int
    shard: int

    @classmethod
    def of(cls, mesh_info: Any) -> Mesh:
        """From torch's record of a unit's mesh, which has no replicas if it is of one dimension."""
        return cls(
            getattr(mesh_info, "replicate_mesh_size", 1),
            mesh_info.shard_mesh_size,
            getattr(mesh_info, "replicate_mesh_rank", 0),
            mesh_info.shard_mesh_rank,
        )

    @property
    def rank(self) -> int:
        """Of this process, among those of all replicas."""
        return self.first_row + self.shard

    @property
    def first_row(self) -> int:
        """The place of the first row that this replica reduce-scatters."""
        return self.replica * self.shards

    @property
    def reduced_shard(self) -> int:
        """The place of the shard that this rank all-reduces with other replicas."""
        return self.replicas * self.shards + self.shard


class Steps(Protocol):
    """What all units of a model share."""

    warmup: int
    statistics: Statistics

    def begin(self, calls: int) -> None:
        """A collective is called that had `calls` calls before."""

    def give_way(self) -> None:
        """Close, because the model is attached again."""


class Collective:
    """The reduce-scatter or the all-reduce of one FSDP unit."""

    def __init__(self, state: Steps, peers: Peers, parameters: Any, index: int) -> None:
        self.state, self.peers, self._index = state, peers, index
        self._parameters: Any = weakref.ref(parameters)  # or a state that is kept would keep the model
        self._mesh = Mesh.of(parameters.mesh_info)
        self._residual: Any = peers.codec.residual()
        self._warned = False
        self.calls = 0
        self.first_call = peers.first_call

    def _begin(self) -> None:
        self.state.begin(self.calls)
        self.calls += 1

    def _round_id(self, place: int) -> int:
        """Of the call in progress."""
        return round_id(self.first_call + self.calls - 1, self._index, place)

    def _whole(self, size: int, rows: int) -> bool:
        """Whether `rows` rows of this size in all hold every trained parameter; residuals need that.

        FSDP2 leaves out parameters without a gradient, and nothing tells whose residuals are left over.
        """
        trained = [p for p in self._parameters().fsdp_params if p.sharded_param.requires_grad]
        whole = rows * sum(
            p.padded_sharded_param_size.numel() * (2 if p.sharded_param.is_complex() else 1) for p in trained
        )
        if size == whole:
            return True
        if not self._warned and self.peers.group.rank == 0:
            _log.warning(
                "an FSDP unit got gradients of %d of its %d coordinates; with feedback, such are sent uncompressed: "
                "set_reduce_scatter_unused_params(True) or feedback=False avoids that", size, whole,
            )  # fmt: skip
        self._warned = True
        return False

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What `FSDPState.state_dict` has of this collective."""
        return {
            "codec": self.peers.codec.description(),
            "rank": self._mesh.rank,
            "calls": self.calls,
            "first_call": self.first_call,
            "residual": None if self._residual is None else self._residual.state_dict(),
        }

    def problem(self, saved: dict[str, Any]) -> str | None:
        """Why a `state_dict` does not fit this collective."""
        return mismatch(saved["codec"], self.peers.codec)

    def load_state_dict(self, saved: dict[str, Any] | None, calls: int) -> bool:
        """Go on from a `state_dict`, or only from a number of calls; False if residuals had to be dropped."""
        self.calls = calls
        if saved is None:
            return True
        self.calls, self.first_call = int(saved["calls"]), int(saved["first_call"])
        if saved["residual"] is None or self._residual is None:
            return saved["residual"] is None
        fits = saved["rank"] == self._mesh.rank and self.problem(saved) is None
        if fits:
            self._residual.load_state_dict(saved["residual"])
        return fits


def sum_factor(op: Any) -> float | None:
    """What the sum over the ranks is multiplied by; None for the mean."""
    if op == dist.ReduceOp.AVG:
        return None
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.PREMUL_SUM and isinstance(state := op.__getstate__(), tuple):
        return float(state[1])
    raise ConfigError(f"reduction {op} is not a mean or sum: give set_gradient_divide_factor a number, or omit it")
