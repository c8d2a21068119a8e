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
from sumwire.errors import BehindError, RoundError
from sumwire.train.ddp.state import DDPState

TRIES = 20
"""Exchanges in which a rank that is behind may miss the others, before it gives up."""


class Resync:
    """A forward pre-hook: before every `every`-th step, ranks compare their parameters and buffers.

    Where they differ, all take those of one rank. A rank that is behind, because it was stopped for long or has just
    been started again, waits here for the next comparison, takes parameters, buffers and step, and goes on. Its
    optimizer's state stays its own. Cost: two joins of a few words; where ranks differ, all parameters from each rank
    that has them, and to all.
    """

    def __init__(self, model: DistributedDataParallel, state: DDPState, every: int) -> None:
        self._every, self._last, self._state = every, state.step, state

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
        """Compare figures; where they differ, exchange parameters. False if this rank is still behind.

        All ranks have the same joined figures, so all come to the same decision, also those that came too late for
        their own to be in them.
        """
        state, mine = self._state, None
        figures = np.full(6, NOTHING, np.int32)
        figures[5] = state.behind
        if not state.behind:
            mine = _pack(state.progress(), tensors)
            digest = int.from_bytes(hashlib.blake2b(mine.tobytes(), digest_size=4).digest(), "little") >> 1
            figures[:5] = state.step, -state.step, digest, -digest, len(mine)
        channel = state.side_channel("resync")
        try:
            number = channel.next_round()
            step, least_step, digest, least_digest, size, somebody_behind = _join(channel, figures, number).tolist()
            if size == NOTHING:
                return False  # nobody here has any
            if not somebody_behind and step == -least_step and digest == -least_digest:
                return not state.behind
            has_newest = mine is not None and figures[0] == step and figures[2] == digest
            offered = mine if mine is not None and has_newest else np.full(size, NOTHING, np.int32)
            newest = _join(state.side_channel("resync-parameters"), offered, number)
        except BehindError:
            return False  # this exchange was over: the channel goes on at the next
        if newest[0] == NOTHING:
            return False  # those that have them were late
        if not has_newest:
            progress = _unpack(newest, tensors)
            if state.behind:
                state.resume(progress)
        return True


def _join(channel: Aggregator, words: NDArray[np.int32], number: int) -> NDArray[np.int32]:
    """The largest of each word over the ranks."""
    codec = Snapshot(channel.workers)
    return channel.average(words, codec=codec, round_id=number)


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
