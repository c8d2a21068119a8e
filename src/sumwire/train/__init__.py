"""Gradients to the optimizer: torch's own extension points, one line in a training script.

>>> import sumwire                                    # doctest: +SKIP
>>> model = DistributedDataParallel(net)              # doctest: +SKIP
>>> sumwire.train.attach(model, bits=4)               # doctest: +SKIP
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Unpack, overload

import torch
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError
from sumwire.train.ddp import DDPState, hook
from sumwire.train.dtypes import check_dense, check_dtypes
from sumwire.train.options import DDPOptions
from sumwire.train.resync import Resync

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from sumwire.train.fsdp import FSDPOptions, FSDPState

__all__ = ["DDPState", "attach", "hook"]


@overload
def attach(model: DistributedDataParallel, bits: int | None = None, **options: Unpack[DDPOptions]) -> DDPState: ...
@overload
def attach(model: FSDPModule, bits: int | None = None, **options: Unpack[FSDPOptions]) -> FSDPState: ...
@overload
def attach(model: torch.nn.Module, bits: int | None = None, **options: Any) -> DDPState | FSDPState: ...
def attach(model: Any, bits: int | None = None, **options: Any) -> DDPState | FSDPState:
    """Average this model's gradients in compressed form from now on.

    All ranks must call it together, before the first backward. Threads and communicators end with the state's `close`,
    or when the model is garbage-collected.

    Parameters
    ----------
    model
        A `DistributedDataParallel`, or a model that went through FSDP2's `fully_shard`.
    bits
        Bits per coordinate that a rank sends (default 4).
    options
        Those of `sumwire.train.options.DDPOptions`, or of `sumwire.train.fsdp.FSDPOptions`.

    Returns
    -------
    DDPState or FSDPState
        Statistics, and a `state_dict` that belongs in every rank's checkpoint.

    Raises
    ------
    ConfigError
        For an option that makes no sense, or a model that is neither.
    InputError
        For a parameter whose gradients cannot be averaged.
    MismatchError
        At every rank, if ranks were given different options.
    """
    if isinstance(model, DistributedDataParallel):
        return _attach_ddp(model, bits, **options)
    if any(type(module).__name__.startswith("FSDP") for module in model.modules()):
        from sumwire.train.fsdp import FSDPState

        return FSDPState(model, bits, **options)
    raise ConfigError(
        f"attach takes a model wrapped by DistributedDataParallel or sharded by fully_shard, not a plain "
        f"{type(model).__name__}: attach(DistributedDataParallel(model))"
    )


def _attach_ddp(model: DistributedDataParallel, bits: int | None, **options: Unpack[DDPOptions]) -> DDPState:
    if model._comm_hooks:
        raise ConfigError(
            "this model has a communication hook already (mixed_precision= sets one, too), and DDP takes only one: "
            "attach to a new wrapper without"
        )
    reduced = {name: p for name, p in model.module.named_parameters() if name not in model.parameters_to_ignore}
    check_dtypes(reduced.items())
    names = {parameter: name for name, parameter in reduced.items()}
    state = DDPState(bits, process_group=model.process_group, names=names, **options)
    if not state.takes_sparse:
        check_dense(model, names, 'they would not stay sparse in a lattice; attach with codec="sparse" or "auto"')
    state.start()
    state.end_with(model)
    # The reducer is C++ and hides what it holds from the garbage collector: were it the state, whose `log` may hold the
    # model, neither would ever be collected. So the model itself holds the state.
    model.register_comm_hook(weakref.proxy(state), hook)
    model._comm_hooks[-1] = hook, state
    every = options.get("resync")
    if every is not None:
        model.register_forward_pre_hook(Resync(model, state, every))
    return state
