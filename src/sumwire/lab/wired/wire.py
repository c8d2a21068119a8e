"""What peers need of a process group: bytes, in the three ways that published schemes exchange them."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Communicator, rows_of, split

Bytes: TypeAlias = NDArray[np.uint8]


class Wire:
    """Sumwire's own communicator, so that peers exchange bytes as fast as Sumwire does. Calls block.

    All ranks know all lengths: nothing but messages travels.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.rank, self.ranks = communicator.rank, communicator.ranks
        self.sent = 0
        """Bytes that this rank has sent, without headers."""
        self.seconds = 0.0
        """Time in collectives: sending, receiving and waiting for others."""
        self._communicator = communicator

    def to_owners(self, messages: Sequence[Bytes], nbytes: int) -> list[Bytes]:
        """Message k goes to rank k; one of `nbytes` comes from each rank."""
        inbox = np.empty(self.ranks * nbytes, np.uint8)
        received = [nbytes] * self.ranks
        self._exchange(messages, inbox, received)
        return split(inbox, received)

    def to_all(self, message: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """Everyone's messages, of these lengths, in rank order."""
        began = perf_counter()
        everyone = np.empty(self.ranks * max(lengths), np.uint8)
        self.sent += self._communicator.all_gather_varied(message, lengths, everyone)
        self.seconds += perf_counter() - began
        return rows_of(everyone, lengths)

    def to_next(self, message: Bytes, nbytes: int) -> Bytes:
        """The message goes to the next rank of the ring; one of `nbytes` comes from the one before."""
        nothing = np.empty(0, np.uint8)
        messages = [nothing] * self.ranks
        messages[(self.rank + 1) % self.ranks] = message
        received = [0] * self.ranks
        received[(self.rank - 1) % self.ranks] = nbytes
        inbox = np.empty(nbytes, np.uint8)
        self._exchange(messages, inbox, received)
        return inbox

    def max(self, values: NDArray[Any]) -> None:
        """values = the largest over the ranks, in place."""
        began = perf_counter()
        self.sent += self._communicator.max(values)
        self.seconds += perf_counter() - began

    def sum(self, values: torch.Tensor) -> None:
        """values = their sum over the ranks, in place; few of them as fast as Sumwire's own."""
        began = perf_counter()
        self.sent += self._communicator.sum_small(values)
        self.seconds += perf_counter() - began

    def close(self) -> None:
        self._communicator.close()

    def _exchange(self, messages: Sequence[Bytes], inbox: Bytes, received: Sequence[int]) -> None:
        began = perf_counter()
        outbox = np.concatenate(messages)
        self.sent += self._communicator.all_to_all(outbox, [len(message) for message in messages], inbox, received)
        self.seconds += perf_counter() - began
