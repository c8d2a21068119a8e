"""DistributedDataParallel's gradients, averaged in compressed form.

hook -> rounds in flight -> propose, join, encode -> add -> decode -> gradient
"""

import torch
from torch._C._distributed_c10d import GradBucket

from sumwire.train.ddp.state import DDPState

__all__ = ["DDPState", "hook"]


# DDP wants to see the classes themselves in the annotations, not their names.
def hook(state: DDPState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook: `model.register_comm_hook(DDPState(bits=4), hook)`."""
    return state.average(bucket)
