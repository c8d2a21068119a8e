"""The lossless routes: own non-zeros to the owner of their shard, or compaction where only sums are to be had."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Wire, as_bytes
from sumwire.aggregate.round import Round, Route
from sumwire.codec.base import same
from sumwire.codec.sparse import segment, segment_sum
from sumwire.codec.sparse.codec import Sparse, expand
from sumwire.codec.sparse.parts import SparsePayload
from sumwire.codec.sparse.sharding import Shards, deal
from sumwire.codec.tensors import flatten
from sumwire.kernels import sparse as kernels

Bytes = NDArray[np.uint8]

TOO_DENSE = 0.9
"""Own density from which a joined bitmap costs more than it saves."""


def takes(tensor: torch.Tensor) -> bool:
    """Whether the values can be summed in float32 without loss."""
    return tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)


@dataclass(eq=False)
class _Luggage:
    sent: int
    payload: SparsePayload
    received: list[int]
    """Bytes of every rank's segment for this rank."""
    mine: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    """The segment of the sum that this rank owns."""
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    everyone: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    """Segments of the sum, in shard order, of these lengths."""


class SparseRoute(Route):
    """All-to-all of own non-zeros, each rank adds its shard in rank order, all-gather of the union's sums.

    Law: every rank gets the bits of the float32 sum in rank order over float32(ranks), NaN and Inf included.
    Bytes: see docs/sparse.md; lengths go ahead, 24 and 8 bytes to each rank.
    """

    def __init__(self, codec: Sparse) -> None:
        # A shard's owner is a rank, so there are as many as ranks, however many a server would get.
        self.codec = replace(codec, shards=codec.workers)

    def join(self, job: Round, wire: Wire) -> None:
        with job.meter.time("encode"):
            terms = self.codec.propose(job.host)
            payload = self.codec.encode(job.host, terms, rank=wire.rank, round_id=job.round_id, buffers=job.buffers)
        with job.meter.time("exchange"):
            # Bytes for each rank, and what all must have alike: else segments would be read as another tensor's.
            mine = np.array([[size, job.host.numel(), payload.kind] for size in payload.sizes], np.int64)
            theirs, each = np.empty_like(mine), [mine[0].nbytes] * wire.ranks
            sent = wire.all_to_all(as_bytes(mine), each, as_bytes(theirs), each)
        for other in theirs:
            same("size and kind of values", mine[0, 1:].tolist(), other[1:].tolist(), "average")
        job.luggage = _Luggage(sent, payload, theirs[:, 0].tolist())

    def exchange(self, job: Round, wire: Wire) -> None:
        bag: _Luggage = job.luggage
        inbox = job.take("inbox", sum(bag.received))
        with job.meter.time("exchange"):
            bag.sent += wire.all_to_all(bag.payload.data, bag.payload.sizes, inbox, bag.received)
        assert job.buffers is not None
        with job.meter.time("add"):
            segments = np.split(inbox, np.cumsum(bag.received)[:-1])
            parts = [(bag.payload.kind, each) for each in segments]
            bits = self.codec.deal(job.host.numel()).bits[wire.rank]
            bag.mine = segment_sum.add(parts, bits, job.buffers)

    def share(self, job: Round, wire: Wire) -> None:
        bag: _Luggage = job.luggage
        with job.meter.time("exchange"):
            bag.lengths = np.empty(wire.ranks, np.int64)
            bag.sent += wire.all_gather(as_bytes(np.array([len(bag.mine)], np.int64)), as_bytes(bag.lengths))
            bag.everyone = job.take("everyone", int(bag.lengths.sum()))
            bag.sent += wire.all_gather_varied(bag.mine, bag.lengths.tolist(), bag.everyone)

    def decode(self, job: Round) -> None:
        bag: _Luggage = job.luggage
        assert job.buffers is not None
        with job.meter.time("decode"):
            mean, shards = job.mean_buffer(), self.codec.deal(job.host.numel())
            # The tensor is 0 where it has no entries of its own, and these are among the union's.
            clean = job.host.dtype == torch.float32
            for shard, data in enumerate(np.split(bag.everyone, np.cumsum(bag.lengths)[:-1])):
                entries = segment.read(data, 0, shards.bits[shard], job.buffers)
                expand(entries, shards, shard, mean, float(self.codec.workers), clean=clean)
            job.hand_over(mean)
        job.meter.count(job.tensor, bag.sent, self.codec.workers)


@dataclass(eq=False)
class _Union:
    sent: int
    words: NDArray[np.uint64]
    shards: Shards
    values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))


class CompactRoute(Route):
    """Join the bitmaps of non-zeros, then a plain sum of the union's values: for what can only sum.

    Law: every rank gets the same float32 sum; its order is the collective's own. A tensor with few zeros goes
    the plain way at all ranks.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def join(self, job: Round, wire: Wire) -> None:
        with job.meter.time("encode"):
            flat, _ = flatten(job.host)
            shards = deal(flat.size, 1)
            words = job.take("words", shards.words(0), np.uint64)
            kernels.scan(flat, shards.starts[0], shards.block, words)
            most = np.array([kernels.count(words) * 1_000_000 // max(1, flat.size)], np.int32)
        with job.meter.time("exchange"):
            sent = wire.max(most)
            if most[0] >= TOO_DENSE * 1_000_000:
                job.algorithm = "plain"
                return
            sent += wire.bit_or(words)
        job.luggage = _Union(sent, words, shards)

    def exchange(self, job: Round, wire: Wire) -> None:
        bag: _Union = job.luggage
        with job.meter.time("encode"):
            flat, _ = flatten(job.host)
            own = job.take("own", kernels.count(bag.words), flat.dtype)
            kernels.compact(flat, bag.shards.starts[0], bag.shards.block, bag.words, own)
            bag.values = np.asarray(kernels.to_float32(own), np.float32)
        with job.meter.time("exchange"):
            if len(bag.values):
                bag.sent += wire.sum(bag.values)

    def decode(self, job: Round) -> None:
        bag: _Union = job.luggage
        with job.meter.time("decode"):
            mean = job.mean_buffer()
            kernels.expand(bag.words, bag.values, bag.shards.starts[0], bag.shards.block, mean, float(self._ranks))
            job.hand_over(mean)
        job.meter.count(job.tensor, bag.sent, self._ranks)
