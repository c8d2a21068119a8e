"""One slot of a round: the payloads of one run of units, until enough have come, then their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sumwire.codec.base import Codec
from sumwire.errors import FrameError
from sumwire.wire import control, frame

Pieces: TypeAlias = list[bytes | memoryview]

KEPT_IN_MEMORY = 2
"""Times as many bytes as on the wire: a payload that is kept until all have come, and as much of the sum."""
BATCH = 8
"""Payloads that are added at once: lanes are then read and written once for all of them."""


class Part:
    """Adds payloads of units lo..hi, each worker's once."""

    def __init__(self, codec: Codec, lo: int, hi: int, memory: int) -> None:
        self.lo, self.hi, self._memory = lo, hi, memory
        self.arrived: set[int] = set()
        self.result: Pieces | None = None
        """The sum's frame, once it is complete; before it, if workers are missing, who they are."""
        self.held = memory
        """Bytes of memory, with those that its sum will take."""
        self.spread = 0.0
        """Seconds from its first payload to its last."""
        self._first: float | None = None
        self._codec = codec
        self._waiting: list[Any] = []
        self._total: Any = None

    def delay(self, now: float) -> float:
        """How long after the first payload the one that comes now is; the first is on time."""
        self._first = now if self._first is None else self._first
        return now - self._first

    def add(self, payload: Any) -> None:
        """Take a worker's payload; its memory is in use until the sum is complete or a batch is full."""
        self.arrived.add(payload.rank)
        self._waiting.append(payload)
        self.held += payload.nbytes * (1 if self._codec.adds_at_once else KEPT_IN_MEMORY)
        if len(self._waiting) >= BATCH and self._codec.adds_at_once:
            self._fold()
            self.held = self._memory or self._total.nbytes

    def complete(self) -> Pieces:
        """The sum's frame, of whoever has arrived."""
        if self.result is None:
            self._fold()
            note: Pieces = []
            missing = set(range(self._codec.workers)) - self.arrived
            if missing:
                ranks = control.write_ranks(missing, self._codec.workers)
                note = [control.to_bytes(control.Expired(self._total.round_id, self.lo, self.hi, ranks))]
            self.result = note + frame.buffers(self._total)
            self.held = sum(len(piece) for piece in self.result)
            self._total = None
        return self.result

    def recover(self, total: Any, missing: set[int]) -> Pieces:
        """Take a sum that was made before this aggregator began, without these workers."""
        if total.count != self._codec.workers - len(missing):
            raise FrameError(f"a sum of {total.count} payloads cannot be without {len(missing)} workers")
        self._waiting, self._total = [], total
        self.arrived = set(range(self._codec.workers)) - missing
        return self.complete()

    def _fold(self) -> None:
        parts: Sequence[Any] = self._waiting if self._total is None else [self._total, *self._waiting]
        if self._waiting:
            self._total = self._codec.add(parts)
        self._waiting = []
