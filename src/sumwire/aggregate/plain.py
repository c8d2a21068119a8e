"""The route without Sumwire: a plain all-reduce, with the bits of DDP's own."""

from __future__ import annotations

import torch.distributed as dist

from sumwire.aggregate.group.communicator import Wire
from sumwire.aggregate.round import Round, Route


class PlainRoute(Route):
    def join(self, job: Round, wire: Wire) -> None:
        """Nothing to agree on."""

    def exchange(self, job: Round, wire: Wire) -> None:
        with job.meter.time("exchange"):
            # In this order and dtype, so that the result has the bits of DDP's own all-reduce.
            dist.all_reduce(job.tensor.mul_(1.0 / wire.ranks), group=wire.group)
        job.meter.count(job.tensor, None, wire.ranks)

    def decode(self, job: Round) -> None:
        """The mean is there already."""
