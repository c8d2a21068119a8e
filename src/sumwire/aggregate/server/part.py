"""One slot of a round: the payloads of one run of blocks, until enough have come, then their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sumwire.codec.sparse.codec import Sparse
from sumwire.errors import FrameError
from sumwire.wire import control, frame
from sumwire.wire.codecs import AnyCodec

Pieces: TypeAlias = list[bytes | memoryview]

SPARSE_IN_MEMORY = 2
"""Times as many bytes as on the wire: a Sparse payload, and as much of the sum."""
BATCH = 8
"""Payloads that are added at once: lanes are then read and written once for all of them."""


class Part:
    """Adds payloads of blocks lo..hi, each worker's once."""

    def __init__(self, codec: AnyCodec, lo: int, hi: int, lanes: int) -> None:
        self.lo, self.hi, self._lanes = lo, hi, lanes
        self.arrived: set[int] = set()
        self.result: Pieces | None = None
        """The sum's frame, once it is complete; before it, if workers are missing, who they are."""
        self.held = lanes
        """Bytes of memory, with those that its lanes will take."""
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
        self.held += payload.nbytes * (SPARSE_IN_MEMORY if isinstance(self._codec, Sparse) else 1)
        # A Sparse sum keeps its payloads anyway: floats are added in rank order, so not before all are there.
        if len(self._waiting) >= BATCH and not isinstance(self._codec, Sparse):
            self._fold()
            self.held = self._lanes or self._total.nbytes

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

    def adopt(self, total: Any, missing: set[int]) -> Pieces:
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
