"""Gradients to the optimizer: torch's own extension points, one line in a training script.

>>> from sumwire.train import attach                  # doctest: +SKIP
>>> model = DistributedDataParallel(net)              # doctest: +SKIP
>>> attach(model, bits=4)                             # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError
from sumwire.train.ddp import State, hook

__all__ = ["State", "attach", "hook"]


def attach(model: torch.nn.Module, bits: int | None = None, **options: Any) -> State:
    """Average this model's gradients in compressed form from now on.

    `model` is a `DistributedDataParallel`; the options are those of `State`. All ranks must call it
    together, before the first backward. Returns the state, whose `state_dict` belongs in checkpoints.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"attach takes a DistributedDataParallel model, not {type(model).__name__}: wrap it first, "
            "attach(DistributedDataParallel(model))"
        )
    if model.reducer is not None and getattr(model, "_comm_hooks", None):
        raise ConfigError(
            "this model has a communication hook already, and DDP takes only one: attach to a new wrapper"
        )
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    state = State(bits, process_group=model.process_group, names=names, **options)
    state.start()
    model.register_comm_hook(state, hook)
    return state
