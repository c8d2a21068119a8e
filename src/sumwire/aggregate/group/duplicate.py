"""Communicators of a process group's ranks, made by all of them together."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from sumwire.aggregate.group.communicator import OWN, Communicator
from sumwire.errors import ConfigError
from sumwire.kernels import backend as kernels


def duplicate(group: dist.ProcessGroup | None, count: int, backend: str | None) -> list[Communicator]:
    """Communicators of the same ranks as `group`. All its ranks must call this together.

    They use the group's own backend where it takes CPU tensors, else gloo (NCCL does not, and our
    kernels run on the CPU). `backend` overrides that; buffers then go through the device it needs.
    """
    parent = group if group is not None else dist.group.WORLD
    if not isinstance(parent, dist.ProcessGroup):  # torch gives ranks outside a group a number instead
        raise ConfigError("no process group: call torch.distributed.init_process_group first, on a rank of the group")
    host = torch.device("cpu")
    chosen = backend or _host_backend(parent) or "gloo"
    device = torch.device("cuda", torch.cuda.current_device()) if chosen == "nccl" else host
    ranks = dist.get_process_group_ranks(parent)
    local = parent is not dist.group.WORLD
    if local:
        _check_names(parent, device)
    made = [
        dist.new_group(ranks, timeout=_timeout(parent), backend=chosen, use_local_synchronization=local)
        for _ in range(count)
    ]
    return [Communicator(each, chosen, device) for each in made]


def device_backend(group: dist.ProcessGroup | None, device: torch.device | None) -> str | None:
    """The backend by which the group moves bytes of a device that kernels read tensors on; None otherwise."""
    parent = group if group is not None else dist.group.WORLD
    if device is None or not kernels.takes(torch.empty(0, device=device)):
        return None
    return _backends_of(parent).get(device.type)


def _check_names(group: dist.ProcessGroup, device: torch.device) -> None:
    """torch names what members of a subgroup make by how many groups they are in: these numbers must agree."""
    count = len(dist.distributed_c10d._world.pg_names)
    extremes = torch.tensor([count, -count], device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    if extremes[0] != -extremes[1]:
        raise ConfigError(
            f"ranks of this process group belong to {-extremes[1]} to {extremes[0]} groups: torch can add more among "
            "them only where all belong to equally many; use the whole world, or make the other groups later"
        )


def _host_backend(group: dist.ProcessGroup) -> str | None:
    """The backend that the group uses for CPU tensors, if any; gloo, which is behind it, instead of our own."""
    backend = _backends_of(group).get("cpu")
    return "gloo" if backend == OWN else backend


def _backends_of(group: dist.ProcessGroup | None) -> dict[str, str]:
    """By device."""
    places = str(dist.get_backend_config(group)).split(",")
    return dict(place.split(":", 1) for place in places if ":" in place)


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """How long the user lets this group's collectives take; None, torch's default, if it does not tell."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if options is not None:
            return getattr(options, "_timeout", None)
    return None
