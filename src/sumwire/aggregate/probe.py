"""Tensors nobody knows yet: measure how many zeros they have, then send them the way that suits."""

from __future__ import annotations

import numpy as np
import torch

from sumwire.aggregate import sparse_route
from sumwire.aggregate.group import cost
from sumwire.aggregate.group.communicator import Wire
from sumwire.aggregate.group.cost import Algorithm
from sumwire.aggregate.round import Round
from sumwire.codec.lattice.codec import Lattice

STRETCH = 4096
"""Coordinates whose density is measured together: a bucket may hold an embedding and dense layers."""


def probe(job: Round, wire: Wire, codec: Lattice) -> None:
    """Set the round's algorithm by its density; the rank that would send most decides for all.

    Cost: one pass over the tensor and one small maximum.
    """
    lossless: Algorithm = "sparse" if wire.has_all_to_all else "compact"
    with job.meter.time("encode"):
        densities = _densities(job.host)
        bits = cost.lossless_bits(lossless, wire.ranks, densities)
        # Floats that are not negative order as integers do.
        most = np.array([bits, densities.mean() if len(densities) else 0], np.float32)
    with job.meter.time("exchange"):
        wire.max(most.view(np.int32))
    job.algorithm = cost.choose_lossless(
        codec, wire.ranks, job.host.numel(), float(most[0]), all_to_all=wire.has_all_to_all
    )
    if job.picked is not None:
        job.picked(job.algorithm, float(most[1]))


def _densities(tensor: torch.Tensor) -> cost.Densities:
    """Share of non-zeros in each stretch. What has no lossless sum in float32 counts as dense."""
    size = tensor.numel()
    if not sparse_route.takes(tensor):
        return np.ones(min(size, 1))
    whole = size // STRETCH * STRETCH
    counts = torch.count_nonzero(tensor[:whole].view(-1, STRETCH), dim=1).numpy() / STRETCH
    tail = torch.count_nonzero(tensor[whole:]).item() / max(1, size - whole)
    weighted = [counts] if whole else []
    return np.concatenate([*weighted, [tail]]) if size > whole else counts
