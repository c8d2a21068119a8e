"""The two ways in which ranks add payloads without decompressing them.

Both `exchange` an encoded payload for the whole sum as it travels, and then `decode` that: the first needs the
network and little else, the second only the CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Wire
from sumwire.aggregate.meter import Meter
from sumwire.aggregate.shards import Shards, cut, even
from sumwire.aggregate.slots import Buffers
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.parts import LatticePayload, LatticeSum, LatticeTerms
from sumwire.kernels import lattice as kernels

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(eq=False)
class Trip:
    """One payload on its way into a sum, in borrowed memory."""

    codec: Lattice
    buffers: Buffers
    terms: LatticeTerms
    payload: LatticePayload
    exact: Floats
    """Values that are summed as they are; afterwards their sum."""
    meter: Meter
    kept: bool = False
    """Whether what does not arrive stays in a residual, to be sent again."""
    sent: int = 0
    """Bytes that this rank has sent."""
    way: dict[str, Any] = field(default_factory=dict)
    """What `exchange` leaves for `decode`."""
    late: list[LatticePayload] = field(default_factory=list)
    """Parts of the payload that came too late for the sum."""

    @property
    def classes(self) -> Bytes:
        return self.terms.plan(self.codec).classes

    def lanes(self, name: str, lo: int, hi: int) -> Bytes:
        """Memory for the lanes of blocks lo..hi."""
        lanes_at = self.terms.plan(self.codec).lanes_at
        return self.buffers.take(name, int(lanes_at[hi] - lanes_at[lo]))

    @property
    def round_id(self) -> int:
        return self.payload.round_id


class Way(ABC):
    """How payloads become a sum that every rank has."""

    @abstractmethod
    def exchange(self, trip: Trip, wire: Wire) -> None: ...

    @abstractmethod
    def decode(self, trip: Trip, out: Floats) -> None:
        """The mean of all payloads, and the sum of the exact values in `trip.exact`."""


class Sharded(Way):
    """All-to-all of b-bit payloads, each rank adds its shard, all-gather of w-bit sums.

    Exact values ride along as float32: their owner adds them in rank order, so that every rank
    gets the same bits.
    """

    def exchange(self, trip: Trip, wire: Wire) -> None:
        shards, edges = cut(trip.terms, trip.codec, wire.ranks), even(len(trip.exact), wire.ranks)
        exact = [4 * (b - a) for a, b in pairwise(edges)]
        sent = [a + b for a, b in zip(exact, shards.up, strict=True)]
        step, mine = sent[wire.rank], exact[wire.rank]
        inbox = trip.buffers.take("inbox", step * wire.ranks)
        outbox = _outbox(trip, shards, edges)
        with trip.meter.time("exchange"):
            trip.sent += wire.all_to_all(outbox, sent, inbox, [step] * wire.ranks)
        with trip.meter.time("add"):
            rows = inbox.reshape(wire.ranks, step)
            sums = trip.buffers.take("sums", max(a + b for a, b in zip(exact, shards.down, strict=True)))
            sums[:mine].view(np.float32)[:] = in_rank_order(rows[:, :mine])
            _add_shard(trip, shards, wire.rank, rows[:, mine:], sums[mine:])
        everyone = trip.buffers.take("everyone", len(sums) * wire.ranks)
        if len(sums):
            with trip.meter.time("exchange"):
                trip.sent += wire.all_gather(sums, everyone)
        trip.way = {"shards": shards, "exact": exact, "rows": everyone.reshape(wire.ranks, len(sums))}

    def decode(self, trip: Trip, out: Floats) -> None:
        # Every rank's message: exact values, then the packed lanes of its shard.
        shards, exact, rows = trip.way["shards"], trip.way["exact"], trip.way["rows"]
        summed = 0
        for rank, row in enumerate(rows):
            lo, hi, mine = shards.edges[rank], shards.edges[rank + 1], exact[rank]
            packed = row[mine : mine + shards.down[rank]]
            trip.codec.decode_packed(packed, trip.terms, lo, hi, count=len(rows), round_id=trip.round_id, out=out)
            trip.exact[summed : summed + mine // 4] = row[:mine].view(np.float32)
            summed += mine // 4


def _outbox(trip: Trip, shards: Shards, edges: list[int]) -> Bytes:
    """For each rank its exact values, then its shard of the payload."""
    if not len(trip.exact):
        return trip.payload.data
    outbox = trip.buffers.take("outbox", trip.exact.nbytes + len(trip.payload.data))
    values, done, sent = trip.exact.view(np.uint8), 0, 0
    for rank, bytes_up in enumerate(shards.up):
        for piece in (values[4 * edges[rank] : 4 * edges[rank + 1]], trip.payload.data[sent : sent + bytes_up]):
            outbox[done : done + len(piece)] = piece
            done += len(piece)
        sent += bytes_up
    return outbox


def in_rank_order(rows: Bytes) -> Floats:
    """The float32 sum of the ranks' rows, from the first to the last."""
    total = np.ascontiguousarray(rows[0]).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # Inf and NaN are what plain addition would give, too
        for row in rows[1:]:
            total = total + np.ascontiguousarray(row).view(np.float32)
    return total


def _add_shard(trip: Trip, shards: Shards, rank: int, rows: Bytes, out: Bytes) -> None:
    """The packed sum of all ranks' payloads of my blocks."""
    lo, hi = shards.edges[rank], shards.edges[rank + 1]
    codec, terms, widths = trip.codec, trip.terms, trip.terms.plan(trip.codec).widths[lo:hi]
    round_id = trip.payload.round_id
    parts = [LatticePayload(codec, terms, round_id, sender, row, widths, lo, hi) for sender, row in enumerate(rows)]
    total = codec.add(parts, out=trip.lanes("shard", lo, hi))
    packed = out[: shards.down[rank]]
    kernels.pack_lanes(codec.scheme, terms.size, trip.classes[lo:hi], total.lanes, packed, lo, hi)


class Lanes(Way):
    """A plain int32 SUM of words that hold several lanes each: for whatever can do only that."""

    def exchange(self, trip: Trip, wire: Wire) -> None:
        scheme, size, blocks = trip.codec.scheme, trip.terms.size, len(trip.terms.sizes)
        with trip.meter.time("add"):
            own = trip.codec.add([trip.payload], out=trip.lanes("lanes", 0, blocks))
            count = int(kernels.words(scheme, trip.terms.sizes, trip.classes).sum())
            words = trip.buffers.take("words", count, np.int32)
            kernels.pack_words(scheme, size, trip.classes, own.lanes, words, 0, blocks)
        for summands in (words, trip.exact):
            if len(summands):
                with trip.meter.time("exchange"):
                    trip.sent += wire.sum(summands)
        trip.way = {"words": words, "ranks": wire.ranks}

    def decode(self, trip: Trip, out: Floats) -> None:
        words, ranks, blocks = trip.way["words"], trip.way["ranks"], len(trip.terms.sizes)
        lanes = trip.lanes("lanes", 0, blocks)
        kernels.unpack_words(trip.codec.scheme, trip.terms.size, trip.classes, words, ranks, lanes, 0, blocks)
        counts = np.full(blocks, ranks, np.int32)
        total = LatticeSum(trip.codec, trip.terms, trip.round_id, ranks, lanes, counts, 0, blocks)
        trip.codec.decode(total, out=out)
