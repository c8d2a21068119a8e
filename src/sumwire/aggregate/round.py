"""One tensor on its way through a collective, and the routes it may take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Wire
from sumwire.aggregate.group.cost import Algorithm
from sumwire.aggregate.meter import Meter
from sumwire.aggregate.slots import Buffers, Slots
from sumwire.codec.lattice.residual import Residual


@dataclass(eq=False)
class Round:
    """Its mean is written over the tensor. What routes keep from stage to stage is in `luggage`."""

    tensor: torch.Tensor
    round_id: int
    algorithm: Algorithm
    done: Callable[[BaseException | None], None]
    residual: Residual | None = None
    exact: torch.Tensor | None = None
    """Positions (int64) of coordinates that are sent as they are."""
    sampled: bool = False
    """Also sum some coordinates exactly, to measure the error."""
    meter: Meter = field(default_factory=Meter)
    settings: Mapping[str, object] | None = None
    """What ranks must agree on before this round."""
    picked: Callable[[Algorithm, float], None] | None = None
    """Told which way a probed round goes, and at which density."""
    keep: Callable[[torch.Tensor], None] | None = None
    """Given the mean of a sparse tensor, which has other rows and so cannot be written over it."""
    ready: Any = None
    """An event on the device's stream, after which the tensor is complete."""

    host: torch.Tensor = field(init=False)
    luggage: Any = None
    buffers: Buffers | None = None
    slots: Slots | None = None

    def borrow(self, slots: Slots) -> None:
        self.slots, self.buffers = slots, slots.borrow()

    def take(self, name: str, size: int, dtype: Any = np.uint8) -> NDArray[Any]:
        """Memory that is this round's until it ends."""
        assert self.buffers is not None
        return self.buffers.take(name, size, dtype)

    def mean_buffer(self) -> NDArray[np.float32]:
        """Where to write the mean: the tensor's own memory, if it is float32 and here."""
        direct = self.host.dtype == torch.float32
        return self.host.numpy() if direct else self.take("mean", self.host.numel(), np.float32)

    def hand_over(self, mean: NDArray[np.float32]) -> None:
        """The mean into the tensor, unless it was written there."""
        if self.host.dtype != torch.float32 or self.host is not self.tensor:
            self.tensor.copy_(torch.from_numpy(mean))

    def finish(self, error: BaseException | None) -> None:
        """Whatever came of it, its memory is free again."""
        if self.slots is not None and self.buffers is not None:
            self.slots.give_back(self.buffers)
        self.buffers = self.luggage = None
        self.done(error)


class Route(ABC):
    """A way through the four stages; each runs in a thread of its own, the first three over a wire of their own."""

    @abstractmethod
    def join(self, job: Round, wire: Wire) -> None:
        """What must be agreed first, and this rank's payload. May set `job.algorithm` to send it another way."""

    @abstractmethod
    def exchange(self, job: Round, wire: Wire) -> None:
        """Payloads in, the sum out; at its owner, if `share` is to follow."""

    def share(self, job: Round, wire: Wire) -> None:  # noqa: B027  (most routes have no use for it)
        """The sum to all ranks, while owners add the next one."""

    @abstractmethod
    def decode(self, job: Round) -> None:
        """The mean into the tensor."""
