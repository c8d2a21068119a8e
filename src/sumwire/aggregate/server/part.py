"""A part of a round at one shard: payloads are added here, each worker's once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """The payloads of units lo..hi, each worker's once, until enough have come; then their sum."""

    def __init__(self, codec: Codec, lo: int, hi: int, memory: int) -> None:
        self.lo, self.hi, self._memory = lo, hi, memory
        self.arrived: set[int] = set()
        """Workers whose payloads are in it, alone or in a rack's sum."""
        self.absent: set[int] = set()
        """Workers whose rack has contributed without them."""
        self.upload: Pieces | None = None
        """What this server, if it is a rack, has contributed upstream."""
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

    @property
    def closed(self) -> bool:
        """Whether no more payloads are added: there is a sum, or a rack's contribution to it."""
        return self.result is not None or self.upload is not None

    @property
    def settled(self) -> set[int]:
        """Workers of which nothing more is to come."""
        return self.arrived | self.absent

    def add(self, addend: Any, ranks: Iterable[int]) -> None:
        """Take a worker's payload or a rack's sum; its memory is in use until all are added or a batch is full."""
        self.arrived.update(ranks)
        self._waiting.append(addend)
        self.held += addend.nbytes * (1 if self._codec.adds_at_once else KEPT_IN_MEMORY)
        if len(self._waiting) >= BATCH and self._codec.adds_at_once:
            self._fold()
            self.held = self._memory or self._total.nbytes

    def complete(self) -> Pieces:
        """The sum's frame, of whoever has arrived."""
        if self.result is None:
            self._fold()
            self._total = self._total.narrow()  # once for all workers
            note: Pieces = []
            missing = set(range(self._codec.workers)) - self.arrived
            if missing:
                ranks = control.write_ranks(missing, self._codec.workers)
                note = [control.to_bytes(control.Expired(self._total.round_id, self.lo, self.hi, ranks))]
            self.result = note + frame.buffers(self._total)
            self.held = sum(len(piece) for piece in self.result)
            self._total = None
        return self.result

    def contribute(self) -> Pieces:
        """What a rack sends upstream of whoever has arrived.

        That is their sum; or their payloads, where floats are added in rank order, so that only the root can add them.
        """
        if self.upload is None:
            if self._codec.adds_at_once:
                self._fold()
                self.upload = [self._holds(self._total.round_id), *frame.buffers(self._total)]
            else:
                frames = [piece for payload in self._waiting for piece in frame.buffers(payload)]
                self.upload = [*frames, self._holds(self._waiting[0].round_id)]
        return self.upload

    def _holds(self, round_id: int) -> bytes:
        ranks = control.write_ranks(self.arrived, self._codec.workers)
        return control.to_bytes(control.Holds(round_id, self.lo, self.hi, ranks))

    def conclude(self, result: Pieces) -> None:
        """Take the sum of all workers from upstream, whatever has arrived here."""
        self.result, self.upload = result, None
        self._waiting, self._total = [], None
        self.held = sum(len(piece) for piece in result)

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
