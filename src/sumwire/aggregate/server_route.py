"""The routes over a parameter server: it adds the payloads; the process group does the rest.

Terms are joined, exact values gathered, and tensors that cannot be encoded averaged between the ranks as on the other
routes, so that results have the same bits, NaN included. Payloads and sums, nearly all bytes, go by the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sumwire.aggregate.client import Link
from sumwire.aggregate.group.communicator import Wire, as_bytes
from sumwire.aggregate.round import Round, Route
from sumwire.aggregate.ways import Floats, Trip, Way, in_rank_order
from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.sparse.parts import SparsePayload


class ThroughServer(Way):
    """A lattice payload up to the server, the sum down."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def exchange(self, trip: Trip, wire: Wire) -> None:
        with trip.meter.time("exchange"):
            reply = self._link.exchange(trip.payload)
            trip.sent += trip.payload.nbytes
            if len(trip.exact):
                rows = trip.buffers.take("everyone", trip.exact.nbytes * wire.ranks)
                trip.sent += wire.all_gather(as_bytes(trip.exact), rows)
                trip.exact[:] = in_rank_order(rows.reshape(wire.ranks, -1))
        trip.way = {"total": reply.total}
        trip.late = [trip.payload.part(lo, hi) for lo, hi in reply.late]

    def decode(self, trip: Trip, out: Floats) -> None:
        trip.codec.decode(trip.way["total"], out=out, divide_by="workers" if trip.kept else "count")


@dataclass(eq=False)
class _Luggage:
    payload: SparsePayload
    total: Any = None


class SparseServerRoute(Route):
    """Own non-zeros up to the server, which adds them in rank order; the union's sums down."""

    def __init__(self, codec: Sparse, link: Link) -> None:
        self.codec, self._link = codec, link

    def join(self, job: Round, wire: Wire) -> None:
        with job.meter.time("encode"):
            terms = self.codec.propose(job.host)
            payload = self.codec.encode(job.host, terms, rank=wire.rank, round_id=job.round_id, buffers=job.buffers)
        job.luggage = _Luggage(payload)

    def exchange(self, job: Round, wire: Wire) -> None:
        bag: _Luggage = job.luggage
        with job.meter.time("exchange"):
            bag.total = self._link.exchange(bag.payload).total

    def decode(self, job: Round) -> None:
        bag: _Luggage = job.luggage
        with job.meter.time("decode"):
            mean = job.mean_buffer()
            mean[:] = 0
            self.codec.decode(bag.total, out=mean)
            job.hand_over(mean)
        job.meter.count(job.tensor, bag.payload.nbytes, self.codec.workers)
