"""Parameters made equal again every few steps, as THC's authors do where updates may get lost."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumwire.train.ddp.state import DDPState


class Resync:
    """A forward pre-hook: before every `every`-th step, all ranks take rank 0's parameters and buffers.

    All ranks that average get the same sums, also those that came too late for them, so parameters stay equal without
    this. It is for jobs that go on after errors: a rank that skipped a step is then wrong for `every` steps at most.
    """

    def __init__(self, model: DistributedDataParallel, state: DDPState, every: int) -> None:
        self._every, self._last, self._state = every, state.step, state
        self._group = model.process_group

    def __call__(self, model: Any, arguments: Any) -> None:
        if not model.training or self._state.step == self._last or self._state.step % self._every:
            return
        self._last = self._state.step  # once per step, whatever the number of forward passes
        source = dist.get_global_rank(self._group, 0)
        with torch.no_grad():
            for tensor in (*model.module.parameters(), *model.module.buffers()):
                dist.broadcast(tensor, source, group=self._group)
