"""One FSDP unit: its reduce-scatter, and its all-reduce where there are replicas."""

from __future__ import annotations

from typing import Any

from sumwire.train.fsdp.all_reduce import CompressedAllReduce, ReplicaGroup, plain_group
from sumwire.train.fsdp.collective import Collective, Steps
from sumwire.train.fsdp.peers import Peers
from sumwire.train.fsdp.reduce_scatter import CompressedReduceScatter


class Unit:
    """A module with sharded parameters of its own, and how their gradients are reduced.

    Parameters
    ----------
    state
        What all units of the model share.
    shards
        The ranks of this replica.
    replicas
        The ranks that have the same shard; None if there are no others.
    parameters
        torch's record of the sharded parameters.
    index
        Of the unit in the model.
    """

    def __init__(self, state: Steps, shards: Peers, replicas: Peers | None, parameters: Any, index: int) -> None:
        self._reduce_scatter = CompressedReduceScatter(state, shards, parameters, index)
        self._all_reduce = None if replicas is None else CompressedAllReduce(state, replicas, parameters, index)

    def install(self, module: Any, parameters: Any) -> None:
        """From now on, torch reduces the gradients of this module by these collectives."""
        module.set_custom_reduce_scatter(self._reduce_scatter)
        if self._all_reduce is not None:
            mesh = parameters.mesh_info
            mesh.replicate_process_group = ReplicaGroup(plain_group(mesh.replicate_process_group), self._all_reduce)

    @property
    def collectives(self) -> list[Collective]:
        found: list[Collective | None] = [self._reduce_scatter, self._all_reduce]
        return [each for each in found if each is not None]

    @property
    def calls(self) -> int:
        """How often the unit was reduced."""
        return max(each.calls for each in self.collectives)

    def state_dict(self) -> dict[str, Any]:
        """What `FSDPState.state_dict` has of this unit."""
        return {
            "reduce_scatter": self._reduce_scatter.state_dict(),
            "all_reduce": None if self._all_reduce is None else self._all_reduce.state_dict(),
        }

    def problem(self, saved: dict[str, Any]) -> str | None:
        """Why a `state_dict` does not fit this unit."""
        theirs = saved["all_reduce"]
        if self._all_reduce is None or theirs is None:
            if self._all_reduce is not theirs:
                had, has = ("one replica", "several") if theirs is None else ("several replicas", "one")
                return f"the state was saved on a mesh with {had}, and this mesh has {has}"
            return self._reduce_scatter.problem(saved["reduce_scatter"])
        return self._reduce_scatter.problem(saved["reduce_scatter"]) or self._all_reduce.problem(theirs)

    def load_state_dict(self, saved: dict[str, Any] | None, calls: int) -> bool:
        """Go on from a `state_dict`, or only from a number of calls; False if residuals had to be dropped."""
        parts = saved or {"reduce_scatter": None, "all_reduce": None}
        kept = self._reduce_scatter.load_state_dict(parts["reduce_scatter"], calls)
        if self._all_reduce is None:
            return kept and not (parts["all_reduce"] and parts["all_reduce"]["residual"])
        return self._all_reduce.load_state_dict(parts["all_reduce"], calls) and kept


def calls_in(saved: dict[str, Any]) -> int:
    """How often a unit was reduced, from its `state_dict`."""
    return max(int(each["calls"]) for each in saved.values() if each is not None)
