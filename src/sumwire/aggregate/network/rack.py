"""`RackLink`: packets are added within a rack, and a server adds the racks.

Two jobs of the rack's aggregator carry it, whose workers are the rack's:

    job n      adds what the rack's workers send; one of them, the first, passes the sum on to the server
    job n + 1  has a quorum of 1: what the first worker sends, the total, goes to all of them

Sums add to sums, so every worker gets the bits that one server for all would give.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np

from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.client.contribution import Contribution, read_total
from sumwire.aggregate.client.link import Link
from sumwire.aggregate.network import gather
from sumwire.aggregate.network.broadcast import Broadcast
from sumwire.aggregate.network.greeting import PacketAddress
from sumwire.aggregate.network.link import ADD, JOIN, SIDE, PacketLink
from sumwire.aggregate.network.transport import RELIABLE, Delivery
from sumwire.aggregate.round import Request
from sumwire.codec.algebra import ErrorFeedback, Payload, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.options import rank_of, real_number, whole_number
from sumwire.codec.streams import Merged, Stream
from sumwire.errors import ConfigError, RoundError, SumwireError
from sumwire.wire.frame import parse, to_bytes


class RackLink(Aggregator):
    """A worker's link to an aggregator in the network that is below a server. Use one thread, or `RoundsInFlight`.

    Law: `average` gives every worker the bits of `sumwire.average(link.prepare(codec), ...)` over the tensors of all
    workers in the sum, in all racks. Cost: as of a `PacketLink`, one small exchange more per sum, and the total again
    on the way down; between the rack and the server one sum each way.

    ranks             first and last of this rack, inclusive
    upstream          "host:port" of the server; only the first worker of the rack connects to it
    upstream_token    the server's
    upstream_options  more of what `connect` takes for a server: job, tls
    """

    ascending = True

    def __init__(
        self,
        address: str,
        *,
        rank: int,
        workers: int,
        ranks: tuple[int, int],
        upstream: str,
        token: str = "",
        upstream_token: str = "",
        upstream_options: dict[str, Any] | None = None,
        codec: Codec | None = None,
        timeout: float = 60.0,
        rate: float = 0.0,
    ) -> None:
        self.workers = whole_number("workers", workers, 1)
        self.rank = rank_of(self.workers, rank)
        first, last = ranks
        if not 0 <= first <= self.rank <= last < self.workers:
            raise ConfigError(
                f"rank {self.rank} is not in ranks {first}-{last}, or these are not some of 0..{self.workers - 1}: "
                "pass the first and the last rank of this worker's rack, and the number of all workers"
            )
        self._ranks = range(first, last + 1)
        self.codec = codec if codec is not None else Lattice(self.workers)
        self._timeout = real_number("timeout", timeout, 1e-3, 1e6)
        place, up = self.rank - first, PacketAddress.of(address)
        own: dict[str, Any] = {"rank": place, "workers": len(self._ranks), "token": token}
        self._up = PacketLink(address, timeout=timeout, rate=rate, **own)
        # Totals come when the server has heard from all racks, or has given up.
        below = replace(up, job=up.job + 1)
        self._down = PacketLink(str(below), timeout=3 * timeout, rate=rate, **own)
        named = {"token": upstream_token, "timeout": timeout, "span": len(self._ranks), **(upstream_options or {})}
        self._server = Link(upstream, rank=first, workers=workers, **named) if place == 0 else None
        self._channels = (JOIN, ADD)
        self._broadcast = Broadcast(self._up, self._down)
        self._opening = threading.Lock()
        self._first: int | None = None
        self._rounds = 0
        self._left_out: set[int] = set()
        """Rounds whose terms were joined without this rack."""
        self._sides: dict[str, RackLink] = {}

    # Beginning and end

    def open(self) -> Self:
        """Wait for the rack's workers and for the server now, rather than at the first round."""
        with self._opening:
            if self._first is None:
                self._open()
        return self

    def _open(self) -> None:
        up, down = self._up.greeting, self._down.greeting
        if up.deadline is not None or down.deadline is not None or down.quorum != 1:
            raise ConfigError(
                f"the rack's jobs have deadlines {up.deadline} and {down.deadline}, and the second a quorum of "
                f"{down.quorum}: configure two jobs, n and n + 1, both without a deadline, the second with quorum = 1"
            )

        def ask() -> bytes:
            assert self._server is not None
            self._server.open()
            return np.array([self._server.first_round, self._server.upcoming], np.uint64).tobytes()

        first, upcoming = np.frombuffer(self._told(self._channels[0], ask, "the first round"), np.uint64).tolist()
        self._first, self._rounds = first, upcoming - first

    def __enter__(self) -> Self:
        return self.open()

    def close(self) -> None:
        """End the session for this worker; rounds in flight raise `RoundError`."""
        for link in (self._up, self._down, self._server):
            if link is not None and self._channels != (SIDE, SIDE):
                link.close()

    # What an aggregator does

    def join(self, terms: Terms, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        self.open()
        mine = self._up.join(terms, round_id=round_id, workspace=workspace)

        def ask() -> bytes:
            assert self._server is not None
            return to_bytes(self._server.join(mine, round_id=round_id), round_id=round_id)

        joined: Terms = parse(self._told(self._channels[0], ask, f"terms of round {round_id}")).terms(
            terms.codec, terms.shape
        )
        if (joined | mine) != joined:
            self._left_out.add(round_id)
        return joined

    def add(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        return self._add(payload, True, "", workspace)

    def skip(self, terms: Terms, *, round_id: int, reason: str) -> Sum:
        """The others' sum. Its layout follows from the terms, so that of a tensor of zeros is the same."""
        nothing = terms.codec.encode(np.zeros(terms.shape, np.float32), terms, rank=self.rank, round_id=round_id)
        return self._add(nothing, False, reason, None)

    def _add(self, payload: Payload, has: bool, reason: str, workspace: Workspace | None) -> Sum:
        self.open()
        about = f"round {payload.round_id} of {payload.codec.family} {payload.shape} under {payload.terms.digest:x}"
        found: Contribution | None = None
        if payload.round_id in self._left_out:
            reason = "terms were joined without this rack"
        else:
            found = self._within(payload, has, about, workspace)

        def ask() -> bytes:
            assert self._server is not None
            request = Request(payload.terms, payload.round_id, None, reason or "nobody of this rack has a payload")
            return self._server.contribute(request, found)

        return read_total(self._told(self._channels[1], ask, f"total of {about}"), payload.terms, self.rank)

    def _within(self, payload: Payload, has: bool, about: str, workspace: Workspace | None) -> Contribution | None:
        """What this rack contributes; None if nobody has anything.

        With a quorum, some workers are not in it; and all chunks must be of the same ones, because a server takes sums
        of whole payloads. So workers first say who is there. Whoever is, but has nothing to add, sends zeros.
        """
        place, channel, codec = self.rank - self._ranks[0], self._channels[1], payload.codec
        mine = np.zeros(8, np.uint64)
        mine[0] = np.uint64(has) << np.uint64(place)
        [said] = self._up.exchange(
            channel, [Stream("or", mine.view(np.uint8), 64, 64)], f"workers of {about}", RELIABLE
        )
        having = int(said.data.view(np.uint64)[0])
        ranks = [rank for k, rank in enumerate(self._ranks) if having >> k & 1]
        if not ranks:
            return None
        delivery, mine_is_in = Delivery(absent=not int(said.members[0]) >> place & 1), bool(having >> place & 1)
        streams = payload.streams(by_unit=False)
        if streams is not None:
            if not mine_is_in:
                streams = [replace(stream, data=np.zeros_like(stream.data)) for stream in streams]
            merged = self._up.exchange(channel, streams, about, delivery, workspace)
            total = codec.read_streams(payload.terms, merged, rank=self.rank, round_id=payload.round_id, ranks=ranks)
            if total is not None:
                return Contribution([total], ranks)

        def exchange(found: list[Stream], what: str, absent: bool) -> list[Merged]:
            how = Delivery(absent=absent or delivery.absent)
            return self._up.exchange(channel, found, f"{what} of {about}", how, workspace)

        frame = np.frombuffer(to_bytes(payload), np.uint8) if mine_is_in else None
        pieces = gather.collect(payload, frame, place, len(self._ranks), exchange)
        if self._server is None:
            return Contribution([payload], ranks)  # only the first worker's goes up
        parts = [parse(piece.tobytes()).payload(codec, payload.terms) for _, (_, _, piece) in sorted(pieces.items())]
        return Contribution([codec.add(parts)] if codec.adds_at_once else parts, ranks)

    def _told(self, channel: int, ask: Callable[[], bytes], about: str) -> bytes:
        """What the rack's first worker gets from the server, at all of them; an error, too."""
        return self._broadcast.run(channel, None if self._server is None else ask, about)

    # Which form of a codec it carries, and rounds

    def prepare(self, codec: Codec) -> Codec:
        """As a `PacketLink` does."""
        return self._up.prepare(codec)

    def check_residual(self, codec: Codec, residual: ErrorFeedback | None) -> None:
        self._up.check_residual(codec, residual)

    @property
    def first_round(self) -> int:
        """Where rounds of the server's job begin to count."""
        self.open()
        assert self._first is not None
        return self._first

    @property
    def upcoming(self) -> int:
        return self.first_round + self._rounds

    def next_round(self) -> int:
        number = self.upcoming
        self._rounds += 1
        return number

    def end_round(self, round_id: int, error: BaseException | None = None) -> None:
        self._left_out.discard(round_id)
        if self._server is not None:
            # An error within the rack, which the server does not know of: others must not wait for this rack.
            self._server.end_round(round_id, SumwireError(str(error)) if isinstance(error, RoundError) else error)

    def side_channel(self, name: str) -> RackLink:
        """The same workers on a channel of their own, under a job of its own at the server; closed with this link."""
        if name not in self._sides:
            side = copy(self.open())
            side._channels, side._opening, side._first, side._rounds = (SIDE, SIDE), threading.Lock(), None, 0
            side._left_out, side._sides = set(), {}
            side._server = None if self._server is None else self._server.side_channel(name)
            self._sides[name] = side
        return self._sides[name]

    def report(self, *, nmse: float) -> None:
        """Tell the server an error, for its page and metrics; only the rack's first worker does."""
        if self._server is not None:
            self._server.report(nmse=nmse)
