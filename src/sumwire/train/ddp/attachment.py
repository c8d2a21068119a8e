"""Ties a state to a DDP wrapper, which takes one hook in its life."""

from __future__ import annotations

import weakref
from typing import Any, Self, Unpack

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from sumwire.errors import ConfigError, RoundError
from sumwire.train.ddp import hook
from sumwire.train.ddp.state import DDPState
from sumwire.train.dtypes import check_dense, check_dtypes
from sumwire.train.options import DDPOptions
from sumwire.train.resync import Resync


class Attachment:
    """What the hook of a model is registered with: the state may be replaced, the hook may not."""

    def __init__(self, state: DDPState | None = None) -> None:
        self.state = state
        """None in a copy of a model, which is not attached."""
        self.resync: RemovableHandle | None = None

    def average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average the bucket with the state in place."""
        if self.state is None:
            raise RoundError("this copy of a model is not attached: call attach(copy, ...) on all ranks")
        return self.state.average(bucket)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def attachment_of(model: DistributedDataParallel) -> Attachment | None:
    """Where this wrapper's state is, if it has one."""
    found = [state for _, state in model._comm_hooks if isinstance(state, Attachment) and state.state is not None]
    return found[0] if found else None


def attach_ddp(
    model: DistributedDataParallel,
    bits: int | None = None,
    *,
    replicated: torch.nn.Module | None = None,
    **options: Unpack[DDPOptions],
) -> DDPState:
    """Attach a new state to this wrapper. `replicated` is the module that `replicate` made it for, if that is so."""
    attachment = attachment_of(model)
    # torch copies the list of hooks with a model, but not the hooks themselves.
    model._comm_hooks[:] = [entry for entry in model._comm_hooks if not _is_copied(entry[1])]
    if attachment is None and model._comm_hooks:
        raise ConfigError(
            "this model has a communication hook already (mixed_precision= sets one, too), and DDP takes only one: "
            "attach to a wrapper that has none"
        )
    reduced = {name: p for name, p in model.module.named_parameters() if name not in model.parameters_to_ignore}
    check_dtypes(reduced.items())
    known = dict(replicated.named_parameters()) if replicated is not None else reduced
    # Without what torch.compile puts before them, so that checkpoints fit with and without it.
    names: dict[torch.Tensor, str] = {p: name.replace("_orig_mod.", "") for name, p in known.items()}
    state = DDPState(bits, process_group=model.process_group, names=names, **options)
    if not state.settings.takes_sparse:
        check_dense(model, names, 'they would not stay sparse in a lattice; attach with codec="sparse" or "auto"')
    if attachment is not None and attachment.state is not None:
        attachment.state.give_way()
    state.start()
    state.end_with(model)
    if attachment is None:
        attachment = Attachment()
        # The reducer is C++ and hides what it holds from the garbage collector: were it the state, whose `log` may hold
        # the model, neither would ever be collected. So the model itself holds the state.
        model.register_comm_hook(weakref.proxy(attachment), hook)
        model._comm_hooks[-1] = hook, attachment
    attachment.state = state
    if attachment.resync is not None:
        attachment.resync.remove()
    every = options.get("resync")
    attachment.resync = None if every is None else model.register_forward_pre_hook(Resync(state, every))
    return state


def _is_copied(state: object) -> bool:
    return isinstance(state, Attachment) and state.state is None
