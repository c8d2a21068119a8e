"""Finds what exchanges a model's gradients, and what steps, behind whatever is wrapped around them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError


def find(model: Any) -> torch.nn.Module | None:
    """The DistributedDataParallel, or the model that fully_shard has sharded; None where there is one process only.

    Looks into torch.compile, Fabric and modules of the user's own, behind a LightningModule, and into `replicate`.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"attach takes a model wrapped by DistributedDataParallel or sharded by fully_shard, not {model!r} of type "
            f"{type(model).__name__}"
        )
    for candidate in (model, _of_lightning(model)):
        found = None if candidate is None else _inside(candidate)
        if found is not None:
            return found
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    raise ConfigError(
        f"nothing exchanges the gradients of this {type(model).__name__}: attach takes a model wrapped by "
        "DistributedDataParallel or sharded by fully_shard, e.g. attach(DistributedDataParallel(model))"
    )


def bare_optimizer(optimizer: Any) -> Any:
    """The one that changes parameters, whose hooks are called: Accelerate, Lightning and Fabric wrap it in their own.

    Accelerate's is an `Optimizer` by its class only, and has no hooks.
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def _inside(model: torch.nn.Module) -> torch.nn.Module | None:
    wrappers: list[torch.nn.Module] = []
    for module in model.modules():
        _refuse(module)
        if isinstance(module, DistributedDataParallel):
            wrappers.append(module)
        elif (replicated := _of_replicate(module)) is not None:
            wrappers.append(replicated)
    if len(wrappers) > 1:
        raise ConfigError(
            f"this {type(model).__name__} holds {len(wrappers)} models wrapped by DistributedDataParallel: attach to "
            "each of them"
        )
    if wrappers:
        return wrappers[0]
    # fully_shard gives a module a class of its own.
    sharded = any(type(module).__name__.startswith("FSDP") for module in model.modules())
    return getattr(model, "_orig_mod", model) if sharded else None


def _refuse(module: torch.nn.Module) -> None:
    kind = type(module)
    if any(base.__name__ == "FullyShardedDataParallel" for base in kind.__mro__):
        raise ConfigError(
            "this model is wrapped by FullyShardedDataParallel (FSDP1), whose reduce-scatter cannot be replaced: use "
            "FSDP2, torch.distributed.fsdp.fully_shard(model)"
        )
    if any(base.__module__.split(".")[0] == "torchft" for base in kind.__mro__):
        raise ConfigError(
            f"torchft's {kind.__name__} averages gradients through its Manager, and DDP takes only one hook: use "
            "torch's DistributedDataParallel; where workers come and go, with a server (docs/server.md)"
        )


def _of_lightning(model: Any) -> torch.nn.Module | None:
    """What the strategy of a LightningModule's trainer runs."""
    wrapped = getattr(getattr(getattr(model, "_trainer", None), "strategy", None), "model", None)
    return wrapped if isinstance(wrapped, torch.nn.Module) else None


def _of_replicate(module: torch.nn.Module) -> DistributedDataParallel | None:
    """The DDP that `replicate` keeps for a module; it would build it in the first forward."""
    try:
        from torch.distributed._composable.replicate import DDP, replicate
    except ImportError:
        return None
    if not isinstance(module, DDP):
        return None
    state: Any = replicate.state(module)
    if not hasattr(state, "_ddp"):
        state.lazy_init()
        state.register_comm_hook()
    wrapper: DistributedDataParallel = state._ddp
    return wrapper
