"""Gradients to the optimizer: torch's own extension points, one line in a training script.

>>> from sumwire.train import attach                  # doctest: +SKIP
>>> model = DistributedDataParallel(net)              # doctest: +SKIP
>>> attach(model, bits=4)                             # doctest: +SKIP
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, overload

import torch
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError
from sumwire.train.ddp import State, hook
from sumwire.train.dtypes import check_dense, check_dtypes

if TYPE_CHECKING:
    from sumwire.train import fsdp

__all__ = ["State", "attach", "hook"]


@overload
def attach(model: DistributedDataParallel, bits: int | None = None, **options: Any) -> State: ...
@overload
def attach(model: torch.nn.Module, bits: int | None = None, **options: Any) -> State | fsdp.State: ...
def attach(model: torch.nn.Module, bits: int | None = None, **options: Any) -> State | fsdp.State:
    """Average this model's gradients in compressed form from now on.

    `model` is a `DistributedDataParallel`, with the options of `State`, or went through FSDP2's
    `fully_shard`, with those of `sumwire.train.fsdp.State`. With `resync`, ranks of the former take rank 0's parameters
    every so many steps. All ranks must call it together, before the
    first backward. Returns the state, whose `state_dict` belongs in every rank's checkpoint. Threads and communicators
    end with its `close`, or when the model is garbage-collected.
    """
    if isinstance(model, DistributedDataParallel):
        return _attach_ddp(model, bits, **options)
    if any(type(module).__name__.startswith("FSDP") for module in model.modules()):
        from sumwire.train import fsdp

        return fsdp.attach(model, bits, **options)
    raise ConfigError(
        f"attach takes a model wrapped by DistributedDataParallel or sharded by fully_shard, not a plain "
        f"{type(model).__name__}: attach(DistributedDataParallel(model))"
    )


def _attach_ddp(model: DistributedDataParallel, bits: int | None, resync: int | None = None, **options: Any) -> State:
    if model._comm_hooks:
        raise ConfigError(
            "this model has a communication hook already (mixed_precision= sets one, too), and DDP takes only one: "
            "attach to a new wrapper without"
        )
    reduced = {name: p for name, p in model.module.named_parameters() if name not in model.parameters_to_ignore}
    check_dtypes(reduced.items())
    names = {parameter: name for name, parameter in reduced.items()}
    state = State(bits, process_group=model.process_group, names=names, **options)
    if not state.takes_sparse:
        check_dense(model, names, 'they would not stay sparse in a lattice; attach with codec="sparse" or "auto"')
    state.start()
    state.end_with(model)
    # The reducer is C++ and hides what it holds from the garbage collector: were it the state, whose `log` may hold the
    # model, neither would ever be collected. So the model itself holds the state.
    model.register_comm_hook(weakref.proxy(state), hook)
    model._comm_hooks[-1] = hook, state
    if resync is not None:
        from sumwire.train.resync import resync as keep_equal

        keep_equal(model, state, resync)
    return state
