"""Parameters made equal again: every few steps, and for a rank that comes back.

THC's authors do the former where updates may get lost. Ranks that have the newest parameters offer them in a join,
which is idempotent: it does not matter how many do, or whose arrive.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.codec.snapshot import NOTHING
from sumwire.errors import BehindError, RoundError
from sumwire.train.ddp.state import DDPState
from sumwire.train.snapshots import header_of, join_words, pack, unpack

TRIES = 20
"""Exchanges in which a rank that is behind may miss the others, before it gives up."""


class Resync:
    """A forward pre-hook: before every `every`-th step, ranks compare their parameters and buffers.

    Where they differ, all take those of one rank. A rank that is behind, because it was stopped for long or has just
    been started again, waits here for the next comparison, takes parameters, buffers and step, and goes on. Its
    optimizer's state stays its own. Cost: a join of a few words; where ranks differ or one does not take part, all
    parameters from each rank that has them, and to all.
    """

    def __init__(self, state: DDPState, every: int) -> None:
        self._every, self._last = every, state.step
        self._state: DDPState | None = state

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a model is not attached."""
        return self.__dict__ | {"_state": None}

    def __call__(self, model: Any, arguments: Any) -> None:
        state = self._state
        if state is None:
            return
        due = model.training and state.step != self._last and state.step % self._every == 0
        if not (state.behind or due):
            return
        tensors = [tensor.detach() for tensor in (*model.module.parameters(), *model.module.buffers())]
        for _ in range(TRIES):
            if self._exchange(state, tensors):
                self._last = state.step  # once per step, whatever the number of forward passes
                return
        raise RoundError(
            f"no rank had parameters to resume from in {TRIES} exchanges: are the others running, with the same resync?"
        )

    def _exchange(self, state: DDPState, tensors: list[torch.Tensor]) -> bool:
        """Compare figures; where they differ, exchange parameters. False if this rank is still behind.

        All ranks have the same joined figures and count, so all come to the same decision, also those that came too
        late for their own to be in them.
        """
        figures, parameters = state.side_channel("resync"), state.side_channel("resync-parameters")
        mine = None if state.behind else pack(state.progress(), tensors)
        own = None if mine is None else _figures(state.step, mine)
        try:
            number = figures.upcoming if state.behind else figures.first_round + state.step // self._every
            joined, count = join_words(figures, own, _FIGURES, number)
            step, least_step, digest, least_digest, size = joined.tolist()
            if count == figures.workers and step == -least_step and digest == -least_digest:
                return not state.behind
            has_newest = own is not None and own[0] == step and own[2] == digest
            offered = mine if has_newest else None if state.behind else np.full(size, NOTHING, np.int32)
            newest, _ = join_words(parameters, offered, size, number - figures.first_round + parameters.first_round)
        except RoundError as error:
            waits = figures.can_listen and (state.behind or isinstance(error, BehindError))
            if not waits:
                raise
            state.behind = True
            return False  # this exchange was over, or nobody came: wait for the next
        # Where packets may be missing, so may a part of what was offered: this rank then keeps what it has until the
        # next exchange.
        if has_newest or _digest(newest) != digest:
            return not state.behind
        unpack(newest, tensors)
        if state.behind:
            state.resume(header_of(newest))
        return True


_FIGURES = 5


def _figures(step: int, packed: NDArray[np.int32]) -> NDArray[np.int32]:
    """Step and digest, and their negatives: so a maximum finds the least ones, too; and the number of words."""
    digest = _digest(packed)
    return np.array([step, -step, digest, -digest, len(packed)], np.int32)


def _digest(packed: NDArray[np.int32]) -> int:
    return int.from_bytes(hashlib.blake2b(packed.tobytes(), digest_size=4).digest(), "little") >> 1
