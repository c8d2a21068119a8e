"""A site: processes that train one replica together, of which the first speaks to the other sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError, InputError, RoundError
from sumwire.train.dtypes import check_dtypes


class Site:
    """The ranks of a DDP model. A site of one process is its own leader, and nothing is sent in it."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group = group if group is not None and dist.get_world_size(group) > 1 else None
        self._device = device
        self.leads = self._group is None or dist.get_rank(self._group) == 0
        """Whether this process speaks to the other sites."""

    def share(self, values: torch.Tensor) -> None:
        """Overwrite with the leader's values."""
        if self._group is None or not values.numel():
            return
        there = values.to(self._device)
        dist.broadcast(there, group=self._group, group_src=0)
        if there is not values:
            values.copy_(there)

    def lead(self, work: Callable[[], int]) -> int:
        """What the leader gets from calling this, at all ranks; what it raises there, all do."""
        result, error = torch.tensor([0, 0]), None
        if self.leads:
            try:
                result[1] = int(work())
            except Exception as raised:
                error, result[0] = raised, 1
        self.share(result)
        if error is not None:
            raise error
        if result[0]:
            raise RoundError("the exchange with the other sites failed: the first rank of this site says why")
        return int(result[1])

    def tell(self, work: Callable[[], NDArray[np.int32] | None]) -> NDArray[np.int32] | None:
        """The words that the leader gets from calling this, if any, at all ranks."""
        found: list[NDArray[np.int32] | None] = [None]

        def count() -> int:
            found[0] = work()
            return 0 if found[0] is None else len(found[0])

        size = self.lead(count)
        if not size:
            return None
        words = torch.empty(size, dtype=torch.int32) if found[0] is None else torch.from_numpy(found[0])
        self.share(words)
        return words.numpy()


def site_of(model: torch.nn.Module) -> Site:
    """Where a model is trained."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return Site(model.process_group if isinstance(model, DistributedDataParallel) else None, device)


def trained_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What is exchanged, by the names that the bare model has."""
    bare = _bare(model)
    named: dict[str, torch.Tensor] = {
        name.replace("_orig_mod.", ""): p for name, p in bare.named_parameters() if p.requires_grad
    }
    if not named:
        raise ConfigError("no parameter of this model is trained: there is nothing to exchange")
    check_dtypes(named.items())
    for name, parameter in named.items():
        if parameter.layout != torch.strided:
            raise InputError(f"parameter {name!r} has layout {parameter.layout}: use a dense one")
        if parameter.is_meta:
            raise InputError(f"parameter {name!r} is on the meta device and has no values: load the model first")
    return named


def averaged_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Floating-point buffers that checkpoints have."""
    bare = _bare(model)
    saved = bare.state_dict().keys()
    return [b for name, b in bare.named_buffers() if name in saved and (b.is_floating_point() or b.is_complex())]


def is_sharded(named: dict[str, Any]) -> bool:
    """Whether FSDP2 has sharded some parameter."""
    return any(isinstance(parameter, DTensor) for parameter in named.values())


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"DiLoCo takes a torch.nn.Module, not {model!r} of type {type(model).__name__}")
    return model.module if isinstance(model, DistributedDataParallel) else model
