"""Gradients to the optimizer: torch's own extension points, one line in a training script.

>>> import sumwire                                    # doctest: +SKIP
>>> model = DistributedDataParallel(net)              # doctest: +SKIP
>>> sumwire.train.attach(model, bits=4)               # doctest: +SKIP
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Unpack, overload

import torch
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError
from sumwire.train.attached import Attached, Idle
from sumwire.train.ddp import DDPState, hook
from sumwire.train.ddp.attachment import attach_ddp
from sumwire.train.diloco import DiLoCo
from sumwire.train.options import DDPOptions
from sumwire.train.process_group import GroupOptions, register_backend
from sumwire.train.wrappers import find

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from sumwire.train.fsdp import FSDPOptions, FSDPState

__all__ = ["DDPState", "DiLoCo", "GroupOptions", "attach", "hook", "register_backend"]

_log = logging.getLogger(__name__)


@overload
def attach(model: DistributedDataParallel, bits: int | None = None, **options: Unpack[DDPOptions]) -> DDPState: ...
@overload
def attach(model: FSDPModule, bits: int | None = None, **options: Unpack[FSDPOptions]) -> FSDPState: ...
@overload
def attach(model: torch.nn.Module, bits: int | None = None, **options: Any) -> Attached: ...
def attach(model: Any, bits: int | None = None, **options: Any) -> Attached:
    """Average this model's gradients in compressed form from now on.

    All ranks must call it together, before a backward pass. Threads and communicators end with the state's `close`,
    or when the model is garbage-collected. Attaching again, with other options say, closes the state before. A copy of
    an attached model is not attached.

    Parameters
    ----------
    model
        A `DistributedDataParallel`, or a model that went through FSDP2's `fully_shard`; or what holds one: the result
        of `torch.compile`, of Fabric's `setup`, of Accelerate's `prepare`, a LightningModule whose trainer runs, a
        module that went through `replicate`. With one process, a model that is none of these is left as it is.
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
    RoundError
        If not all ranks attach.
    """
    found = find(model)
    if found is None:
        DDPState(bits, **options)  # so that a bad option is found here, too
        if options.get("server") is not None:
            raise ConfigError(
                f"nothing exchanges the gradients of this {type(model).__name__}, with a server or without: "
                "attach(DistributedDataParallel(model), server=...)"
            )
        _log.warning("Sumwire: this is the only process, so there are no gradients to exchange: attach does nothing")
        return Idle()
    if isinstance(found, DistributedDataParallel):
        parameters_only = isinstance(found.module, torch.nn.ParameterList)
        return attach_ddp(found, bits, replicated=model if parameters_only else None, **options)
    from sumwire.train.fsdp import FSDPState

    return FSDPState(found, bits, **options)
