"""Words that workers make equal by a join: figures to compare, and tensors as bytes, exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.base import Aggregator
from sumwire.codec.snapshot import Snapshot


def join_words(
    channel: Aggregator, words: NDArray[np.int32] | None, size: int, number: int
) -> tuple[NDArray[np.int32], int]:
    """The largest of each word over the ranks that have any, and how many took part. None: take no part."""
    codec = Snapshot(channel.workers)
    if words is None:
        total = channel.listen(codec, (size,), round_id=number, reason="it is behind, and waits for parameters")
    else:
        terms = channel.join(codec.propose(words), round_id=number)
        total = channel.add(codec.encode(words, terms, rank=channel.rank, round_id=number))
        channel.end_round(number)
    return codec.decode(total), total.count


def pack(progress: dict[str, Any], tensors: Iterable[torch.Tensor]) -> NDArray[np.int32]:
    """Bytes of the header's length, the header and all tensors, as words; the first is never `NOTHING`."""
    header = json.dumps(progress).encode()
    pieces = [np.array([len(header)], np.int32).view(np.uint8), np.frombuffer(header, np.uint8)]
    pieces += [bytes_of(tensor) for tensor in tensors]
    data = np.concatenate(pieces)
    return np.concatenate([data, np.zeros(-len(data) % 4, np.uint8)]).view(np.int32)


def packed_size(progress: dict[str, Any], tensors: Iterable[torch.Tensor]) -> int:
    """How many words `pack` makes of them."""
    nbytes = 4 + len(json.dumps(progress).encode()) + sum(t.numel() * t.element_size() for t in tensors)
    return -(-nbytes // 4)


def header_of(words: NDArray[np.int32]) -> dict[str, Any]:
    """What was packed with the tensors."""
    header: dict[str, Any] = json.loads(words.view(np.uint8)[4 : 4 + int(words[0])].tobytes())
    return header


def unpack(words: NDArray[np.int32], tensors: Iterable[torch.Tensor]) -> None:
    """Overwrite the tensors with those that were packed."""
    data = words.view(np.uint8)
    at = 4 + int(words[0])
    with torch.no_grad():
        for tensor in tensors:
            nbytes = tensor.numel() * tensor.element_size()
            flat = torch.from_numpy(data[at : at + nbytes].copy()).view(tensor.dtype) if nbytes else tensor.new_empty(0)
            tensor.copy_(flat.view(tensor.shape))
            at += nbytes


def bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """A tensor's bytes, in the host's memory."""
    flat = tensor.cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
