"""hivemind's butterfly all-reduce with its own parts and compression, between workers of one process.

As in its `AllReduceRunner`: every part of a tensor has an owner, to whom all others send it compressed; the owner adds
what it decoded to its own part, which it has as it is, and sends everyone the difference between the mean and what it
decoded from them, compressed in the same way. So every worker ends with another mean. A gradient is one flat tensor
here; hivemind itself would compress each parameter's apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from sumwire.lab.peers.base import Vector
from sumwire.lab.peers.installed import Average, Received

try:
    from hivemind.averaging.partition import TensorPartContainer
    from hivemind.compression import CompressionInfo, deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.compression.serialization import _BASE_COMPRESSION_TYPES
    from hivemind.proto.runtime_pb2 import CompressionType
except ModuleNotFoundError as error:
    if error.name != "hivemind":
        raise
    raise ImportError("sumwire.lab.peers.from_hivemind needs hivemind: pip install hivemind") from None


def schemes() -> Mapping[str, Average]:
    """Its compressions at their defaults. BLOCKWISE_8BIT needs the package bitsandbytes."""
    return {name: partial(average, name) for name in CompressionType.keys() if name != "NONE"}  # noqa: SIM118


def average(compression: str, xs: Sequence[Vector]) -> Received:
    """One round in which all workers take part and own about as many values.

    Bits of messages include the header of each part, and are divided by the values that travel.
    """
    workers, size = len(xs), xs[0].size
    kind = _BASE_COMPRESSION_TYPES[compression]
    tensors = [torch.from_numpy(x.copy()) for x in xs]
    containers = [TensorPartContainer([tensor], [1.0] * workers, kind) for tensor in tensors]
    means = [np.empty(size, np.float32) for _ in xs]
    up = down = values = 0
    for owner in range(workers):
        for parts in zip(*(container.get_raw_input_parts(owner) for container in containers), strict=True):
            sent = [(part, 0) if rank == owner else _transmit(kind, part) for rank, part in enumerate(parts)]
            mean = torch.stack([part for part, _ in sent]).mean(0)
            start, length = parts[0].storage_offset(), parts[0].numel()
            for rank, (seen, bits) in enumerate(sent):
                own = rank == owner
                delta, back = (mean - seen, 0) if own else _transmit(kind, mean - seen)
                means[rank][start : start + length] = (parts[rank] + delta).numpy()
                up, down, values = up + bits, down + back, values + (0 if own else length)
    return Received(means, up / max(1, values), down / max(1, values))


def _transmit(kind: Any, part: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A part as its receiver decodes it, and the bits of the message."""
    message = serialize_torch_tensor(part, kind.compression_type, CompressionInfo.from_tensor(part))
    return deserialize_torch_tensor(message), 8 * message.ByteSize()
