"""All-reduce in bfloat16: torch's own hook for it wants NCCL, although gloo can."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future


# DDP wants to see the classes themselves in the annotations, not their names.
def bf16_hook(group: dist.ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """What torch's fp16 hook does, in bfloat16: cast, divide, all-reduce, cast back. gloo rounds at every hop."""
    buffer = bucket.buffer()
    narrow = buffer.to(torch.bfloat16).div_(dist.get_world_size(group))
    work = dist.all_reduce(narrow, group=group, async_op=True)
    assert work is not None, "this rank is not in the group"

    def widen(done: Future[list[Tensor]]) -> Tensor:
        return buffer.copy_(done.value()[0])

    reduced: Future[Tensor] = work.get_future().then(widen)
    return reduced
