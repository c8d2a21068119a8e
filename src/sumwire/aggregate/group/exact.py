"""The mean without compression: one all-reduce, for whatever a codec cannot or should not take."""

from __future__ import annotations

import numpy as np
import torch

from sumwire.aggregate.group.communicator import Communicator
from sumwire.codec.tensors import (
    TORCH_DTYPES,
    Tensor,
    check_torch,
    flatten,
    float32_pairs,
    give_back,
    join_pairs,
    refuse_dtype,
)


def average(communicator: Communicator, x: Tensor, out: Tensor | None) -> tuple[Tensor, int]:
    """The mean over the ranks, in x's kind, dtype and shape or in `out`; and the bytes that this rank sent.

    Tensors are scaled, then summed in their own dtype, which gives the bits of DDP's own all-reduce. A group that can
    only sum takes float32: halves are summed in that, and float64 as pairs of it.
    """
    in_place = out is x and isinstance(x, torch.Tensor) and x.is_contiguous() and communicator.has_all_to_all
    in_place = in_place and not x.is_neg()
    mean = _dense(x, copy=not in_place)
    if communicator.has_all_to_all:
        sent = communicator.all_reduce(mean.mul_(1.0 / communicator.ranks))
        return (out if in_place else _give_back(mean, x, out)), sent
    if mean.dtype == torch.float64:
        pairs = torch.from_numpy(float32_pairs(mean))
        sent = communicator.all_reduce(pairs.mul_(1.0 / communicator.ranks))
        return give_back(join_pairs(pairs.numpy()), x, out), sent
    mean = mean.float()
    sent = communicator.all_reduce(mean.mul_(1.0 / communicator.ranks))
    return _give_back(mean, x, out), sent


def _dense(x: Tensor, *, copy: bool) -> torch.Tensor:
    """x as a contiguous torch tensor."""
    if isinstance(x, torch.Tensor):
        check_torch(x, anywhere=True)
        if str(x.dtype) not in TORCH_DTYPES:
            refuse_dtype(str(x.dtype), torch=True)
        plain: torch.Tensor = x.detach().resolve_neg()
        return plain.clone(memory_format=torch.contiguous_format) if copy else plain
    flat, shape = flatten(x)
    tensor = torch.from_numpy(flat.copy())
    return (tensor.view(torch.bfloat16) if flat.dtype == np.uint16 else tensor).view(shape)


def _give_back(mean: torch.Tensor, x: Tensor, out: Tensor | None) -> Tensor:
    if out is None and isinstance(x, torch.Tensor):
        return mean.to(x.dtype)
    # NumPy has no bfloat16, and float32 holds all of its values.
    return give_back((mean.float() if mean.dtype == torch.bfloat16 else mean).numpy(), x, out)
