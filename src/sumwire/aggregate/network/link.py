"""`PacketLink`: averages over whatever adds packets on the path, a switch or a process that takes its place."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from typing import Any, Literal, Self

import numpy as np

from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.network import gather
from sumwire.aggregate.network.greeting import Greeting, PacketAddress
from sumwire.aggregate.network.transport import RELIABLE, Delivery, Transport
from sumwire.aggregate.protocol.packet import GRAIN, MAX_WORKERS
from sumwire.codec.algebra import ErrorFeedback, Payload, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.options import one_of, rank_of, real_number, whole_number
from sumwire.codec.streams import Merged, Stream
from sumwire.errors import ConfigError, RoundError

JOIN, ADD, SIDE = range(3)
"""Channels: what threads do at the same time needs one each."""

_ROUNDS = 1 << 24
"""Rounds of a session: the next one begins with others, so that no random numbers are used twice."""

Loss = Literal["reliable", "lossy"]


class PacketLink(Aggregator):
    """A worker's link to an aggregator in the network. Use one thread, or `RoundsInFlight`.

    Law: with loss="reliable", `average` gives every worker the bits of `sumwire.average` over the tensors of all
    workers in the sum. With "lossy", packets of a Lattice's payload are sent once: what is missing at the aggregator's
    deadline counts as not arrived, block by block, and goes back into the residual if there is one. Codecs that nobody
    on the path can add are exchanged whole.

    It connects when it is first used, or at the begin of a `with` statement, whose end closes it; else call `close`.
    """

    def __init__(
        self,
        address: str,
        *,
        rank: int,
        workers: int,
        token: str = "",
        codec: Codec | None = None,
        timeout: float = 60.0,
        loss: Loss = "reliable",
        rate: float = 0.0,
    ) -> None:
        self.workers = whole_number("workers", workers, 1, MAX_WORKERS)
        self.rank = rank_of(self.workers, rank)
        self._address, self._secret = PacketAddress.of(address), token
        self._timeout, self._rate = real_number("timeout", timeout, 1e-3, 1e6), real_number("rate", rate, 0.0, 1e15)
        self.lossy = one_of("loss", loss, ("reliable", "lossy")) == "lossy"
        self._codec = codec
        self._transport: Transport | None = None
        self._channels = (JOIN, ADD)
        self._opening = threading.Lock()
        self._opened_by = 0
        self._rounds = 0
        self.late_units = 0
        """Units of the last sum that this worker's payload is not in."""
        self._sides: dict[str, PacketLink] = {}

    @property
    def codec(self) -> Codec:  # type: ignore[override]
        """What `average` uses unless told otherwise."""
        return self._codec if self._codec is not None else Lattice(self.workers)

    # Beginning and end

    def open(self) -> Self:
        """Say HELLO and wait for the other workers now, rather than at the first round."""
        self._open()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def _open(self) -> Transport:
        with self._opening:
            if self._transport is None:
                self._transport = Transport(
                    self._address, rank=self.rank, workers=self.workers, secret=self._secret, timeout=self._timeout,
                    rate=self._rate,
                )  # fmt: skip
                self._opened_by = os.getpid()
                if self.lossy and self._transport.greeting.deadline is None:
                    self._transport.close()
                    raise ConfigError(
                        'loss="lossy" needs an aggregator that ends chunks without those missing: give its job a '
                        'deadline, or pass loss="reliable"'
                    )
            elif self._opened_by != os.getpid():
                raise RoundError("the link was opened before this process was forked: open one in each process")
            return self._transport

    @property
    def greeting(self) -> Greeting:
        """What the aggregator said of the session."""
        return self._open().greeting

    def close(self) -> None:
        """End the session for this worker; rounds in flight raise `RoundError`."""
        with self._opening:
            transport = self._transport
        if transport is not None and self._channels != (SIDE, SIDE) and self._opened_by == os.getpid():
            transport.close()

    # What an aggregator does

    def join(self, terms: Terms, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        words = terms.words
        if not words.size:
            return terms
        bits = 8 * words.itemsize
        top = words.dtype.type(np.iinfo(words.dtype).min if terms.joined_by == "max" else 0)
        # An aggregator compares unsigned: flipping the top bit keeps the order of signed integers.
        data = np.ascontiguousarray(words ^ top).view(np.uint8).reshape(-1)
        stream = Stream("max" if terms.joined_by == "max" else "or", data, bits, len(data), partial=True)
        about, channel = f"terms of round {round_id} of {terms.codec.family} {terms.shape}", self._channels[0]
        late = Delivery(absent=not self._is_in_quorum(about, workspace))
        [merged] = self.exchange(channel, [stream], about, late, workspace)
        return terms.with_words(merged.data.view(words.dtype) ^ top)

    def _is_in_quorum(self, about: str, workspace: Workspace | None) -> bool:
        """Whether this worker is among those whose terms the round waits for.

        If each packet of terms had a quorum of its own, different workers could miss different ones, and too few could
        encode.
        """
        greeting = self.greeting
        if greeting.quorum == greeting.workers:
            return True
        call = Stream("or", np.zeros(GRAIN, np.uint8), 64, GRAIN, partial=True)
        [here] = self.exchange(self._channels[0], [call], f"quorum for {about}", RELIABLE, workspace)
        return bool(here.members[0] >> np.uint64(self.rank) & np.uint64(1))

    def add(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        return self._add(payload, Delivery(once=self.lossy, tolerant=self.lossy), workspace)

    def skip(self, terms: Terms, *, round_id: int, reason: str) -> Sum:
        """The others' sum. Its layout follows from the terms, so that of a tensor of zeros is the same."""
        codec = terms.codec
        nothing = codec.encode(np.zeros(terms.shape, np.float32), terms, rank=self.rank, round_id=round_id)
        return self._add(nothing, Delivery(absent=True, once=self.lossy, tolerant=self.lossy), None)

    def _add(self, payload: Payload, delivery: Delivery, workspace: Workspace | None) -> Sum:
        about = f"round {payload.round_id} of {payload.codec.family} {payload.shape} under {payload.terms.digest:x}"
        streams, channel = payload.streams(by_unit=self.greeting.leaves_out), self._channels[1]
        if streams is not None:
            merged = self.exchange(channel, streams, about, delivery, workspace)
            total = payload.codec.read_streams(payload.terms, merged, rank=self.rank, round_id=payload.round_id)
            if total is not None:
                self.late_units = sum(hi - lo for lo, hi in total.late)
                return total

        def exchange(found: list[Stream], what: str, absent: bool) -> list[Merged]:
            how = Delivery(absent=absent or delivery.absent)
            return self.exchange(channel, found, f"{what} of {about}", how, workspace)

        return gather.add(payload, self.workers, exchange)

    def exchange(
        self,
        channel: int,
        streams: list[Stream],
        about: str,
        delivery: Delivery = RELIABLE,
        workspace: Workspace | None = None,
    ) -> list[Merged]:
        """All workers' streams, merged; `about` is the same at all workers, and names what they are."""
        with nullcontext() if workspace is None else workspace.statistics.time("exchange"):
            merged = self._open().exchange(channel, streams, about, delivery)
        if workspace is not None:
            workspace.statistics.add_sent(sum(len(stream.data) for stream in streams))
        return merged

    # Which form of a codec it carries, and rounds

    def prepare(self, codec: Codec) -> Codec:
        """Lanes of 8, 16 or 32 bits, widths of which a byte holds whole indices; blocks that fit packets, where sums
        may be without some workers.
        """
        greeting = self.greeting
        return codec.for_network(greeting.body if greeting.leaves_out else None)

    def check_residual(self, codec: Codec, residual: ErrorFeedback | None) -> None:
        if residual is not None and self.prepare(codec).family != residual.codec.family:
            raise ConfigError(
                "the codec of this residual cannot be added by packets as it is: build both with link.prepare(codec)"
            )
        if (residual is not None) != codec.feedback:
            raise ConfigError(
                "a codec with feedback=True needs a residual at every worker, and a residual such a codec: build it "
                f"with feedback={residual is not None}, or {'pass a' if residual is None else 'omit the'} residual"
            )

    @property
    def first_round(self) -> int:
        """Where rounds of this session begin to count."""
        return self.greeting.session * _ROUNDS

    @property
    def upcoming(self) -> int:
        return self.first_round + self._rounds

    def next_round(self) -> int:
        self._rounds += 1
        return self.first_round + self._rounds - 1

    def side_channel(self, name: str) -> PacketLink:
        """The same workers on a channel of their own; closed with this link."""
        if name not in self._sides:
            side = PacketLink(
                str(self._address), rank=self.rank, workers=self.workers, token=self._secret, timeout=self._timeout
            )
            side._transport, side._opened_by, side._channels = self._open(), self._opened_by, (SIDE, SIDE)
            self._sides[name] = side
        return self._sides[name]

    @property
    def counts(self) -> dict[str, Any]:
        """Packets, bytes, repetitions and the round-trip time so far."""
        return self._open().counts
