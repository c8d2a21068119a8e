"""Parameters made equal again every so many steps, as THC's authors do where updates may get lost."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumwire.codec.base import whole_number
from sumwire.errors import ConfigError
from sumwire.train.ddp import State


def resync(model: DistributedDataParallel, state: State, every: int) -> Any:
    """Before every `every`-th step, all ranks take rank 0's parameters and buffers. Returns torch's handle.

    All ranks that average get the same sums, also those that came too late for them, so parameters stay equal without
    this. It is for jobs that go on after errors: a rank that skipped a step is then wrong for `every` steps at most.
    """
    if whole_number("resync", every) < 1:
        raise ConfigError(f"resync={every} is less than 1: the number of steps between two broadcasts")
    last = [state.step]

    def broadcast(module: torch.nn.Module, arguments: Any) -> None:
        if not module.training or state.step == last[0] or state.step % every:
            return
        last[0] = state.step  # once a step, whatever the number of forward passes
        source = dist.get_global_rank(model.process_group, 0)
        with torch.no_grad():
            for tensor in (*model.module.parameters(), *model.module.buffers()):
                dist.broadcast(tensor, source, group=model.process_group)

    return model.register_forward_pre_hook(broadcast)
