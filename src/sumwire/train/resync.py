"""Parameters made equal again: every few steps, and for a rank that comes back.

THC's authors do the former where updates may get lost. Ranks that have the newest parameters offer them in a join,
which is idempotent: it does not matter how many do, or whose arrive.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from sumwire.aggregate.base import Aggregator
from sumwire.codec.snapshot import NOTHING, Snapshot
from sumwire.errors import RoundError
from sumwire.train.ddp.state import DDPState

PIECE = 1 << 22
"""Words of a snapshot that travel in one round."""
TRIES = 20
"""Exchanges in which only ranks that are behind may meet, before one gives up."""


class Resync:
    """A forward pre-hook: before every `every`-th step, ranks compare their parameters and buffers.

    Where they differ, all take those of one rank. A rank that is behind, because it was stopped for long or has just
    been started again, waits here for the next comparison, takes parameters, buffers and step, and goes on. Its
    optimizer's state stays its own. Cost: two joins of a few words; where ranks differ, all parameters from each rank
    that has them, and to all.
    """

    def __init__(self, model: DistributedDataParallel, state: DDPState, every: int) -> None:
        self._every, self._last, self._state = every, state.step, state
        self._channel: Aggregator | None = None

    def __call__(self, model: Any, arguments: Any) -> None:
        state = self._state
        due = model.training and state.step != self._last and state.step % self._every == 0
        if not (state.behind or due):
            return
        tensors = [tensor.detach() for tensor in (*model.module.parameters(), *model.module.buffers())]
        for _ in range(TRIES):
            if self._exchange(tensors):
                self._last = state.step  # once per step, whatever the number of forward passes
                return
        raise RoundError(
            f"no rank had parameters to resume from in {TRIES} exchanges: are the others running, with the same resync?"
        )

    def _exchange(self, tensors: list[torch.Tensor]) -> bool:
        """Whether all that take part have the same parameters now."""
        state, mine = self._state, None
        figures = np.full(6, NOTHING, np.int32)
        figures[5] = state.behind
        if not state.behind:
            mine = _pack(state.progress(), tensors)
            digest = int.from_bytes(hashlib.blake2b(mine.tobytes(), digest_size=4).digest(), "little") >> 1
            figures[:5] = state.step, -state.step, digest, -digest, len(mine)
        joined = self._join(figures).tolist()
        if joined[4] == NOTHING:
            return False  # nobody here has any
        if not joined[5] and joined[0] == -joined[1] and joined[2] == -joined[3]:
            return True
        has_newest = mine is not None and figures[0] == joined[0] and figures[2] == joined[2]
        words = mine if has_newest and mine is not None else np.full(joined[4], NOTHING, np.int32)
        pieces = [self._join(words[at : at + PIECE]) for at in range(0, len(words), PIECE)]
        newest = np.concatenate(pieces)
        if newest[0] == NOTHING:
            return False  # those that have them were late for this one
        if not has_newest:
            progress = _unpack(newest, tensors)
            if state.behind:
                state.resume(progress)
        return True

    def _join(self, words: NDArray[np.int32]) -> NDArray[np.int32]:
        """The largest of each word over the ranks."""
        if self._channel is None:
            self._channel = self._state.side_channel("resync")
        channel, codec = self._channel, Snapshot(self._channel.workers)
        terms = channel.join(codec.propose(np.ascontiguousarray(words)), round_id=(number := channel.next_round()))
        total = channel.add(codec.encode(words, terms, rank=channel.rank, round_id=number))
        channel.end_round(number)
        return codec.decode(total, missing="zero")


def _pack(progress: dict[str, Any], tensors: list[torch.Tensor]) -> NDArray[np.int32]:
    """Bytes of the header's length, the header and all tensors, as words; the first is never `NOTHING`."""
    header = json.dumps(progress).encode()
    pieces = [np.array([len(header)], np.int32).view(np.uint8), np.frombuffer(header, np.uint8)]
    pieces += [_bytes_of(tensor) for tensor in tensors]
    data = np.concatenate(pieces)
    return np.concatenate([data, np.zeros(-len(data) % 4, np.uint8)]).view(np.int32)


def _unpack(words: NDArray[np.int32], tensors: list[torch.Tensor]) -> dict[str, Any]:
    """The header; the tensors are overwritten."""
    data = words.view(np.uint8)
    at = 4 + int(words[0])
    progress: dict[str, Any] = json.loads(data[4:at].tobytes())
    with torch.no_grad():
        for tensor in tensors:
            nbytes = tensor.numel() * tensor.element_size()
            flat = torch.from_numpy(data[at : at + nbytes].copy()).view(tensor.dtype) if nbytes else tensor.new_empty(0)
            tensor.copy_(flat.view(tensor.shape))
            at += nbytes
    return progress


def _bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    flat = tensor.cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
