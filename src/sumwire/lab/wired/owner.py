"""Shards have owners, who average what all send them and send the mean back: an all-to-all and an all-gather."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sumwire.lab.peers.base import Parts, Vector, mean_of
from sumwire.lab.peers.exchange import QuantizedPeer
from sumwire.lab.peers.hops import shards
from sumwire.lab.peers.ternary import TernGrad
from sumwire.lab.wired.exchange import RankExchange
from sumwire.lab.wired.messages import Format
from sumwire.lab.wired.wire import Wire


class OwnerExchange(RankExchange):
    """Payloads to owners, and the mean in the format of `down` back.

    Shards are whole blocks, so quantizers do the same as with the whole tensor. There may be fewer than ranks: a scheme
    with one scale for all has one owner, which is then a server that shares its link with its own worker.
    """

    def __init__(self, peer: QuantizedPeer, wire: Wire) -> None:
        super().__init__(peer.size, wire)
        self.peer = peer
        self.shards = shards(peer.size, math.lcm(peer.up.block, peer.down.block), wire.ranks)
        self.up = [Format(peer.up, shard.stop - shard.start) for shard in self.shards]
        self.down = [Format(peer.down, shard.stop - shard.start) for shard in self.shards]

    def _average(self, x: Vector, finite: bool) -> Vector | None:
        payloads = self._payloads(x) if finite else [None] * self.wire.ranks
        messages = [form.write(parts) for form, parts in zip(self.up, payloads, strict=True)]
        own = self.up[self.wire.rank]
        received = [own.read(message) for message in self.wire.to_owners(messages, own.nbytes)]
        answer = self.down[self.wire.rank].write(self._answer(received))
        rows = self.wire.to_all(answer, [form.nbytes for form in self.down])
        mean = np.empty(self.size, np.float32)
        for shard, form, row in zip(self.shards, self.down, rows, strict=True):
            parts = form.read(row)
            if parts is None:
                return None
            mean[shard] = form.values(parts)
        return mean

    def _payloads(self, x: Vector) -> list[Parts | None]:
        """One for each rank; nothing but the status for those that own nothing."""
        owners = [k for k, form in enumerate(self.up) if form.size]
        sent, _ = self.peer.payloads(x, self.wire.rank, [self.shards[k] for k in owners])
        of_owner = dict(zip(owners, sent, strict=True))
        return [of_owner.get(k, ()) for k in range(self.wire.ranks)]

    def _answer(self, received: Sequence[Parts | None]) -> Parts | None:
        """The mean of this rank's shard, quantized; None if a sender had a value that is not finite."""
        form = self.up[self.wire.rank]
        payloads = [parts for parts in received if parts is not None]
        if len(payloads) < len(received):
            return None
        if not form.size:
            return ()
        mean = mean_of(map(form.values, payloads))
        # Quantizers would make plausible numbers of an overflow, too.
        return self.peer.answer(mean, self.shards[self.wire.rank]) if np.isfinite(mean).all() else None


class TernaryExchange(RankExchange):
    """TernGrad: scales are shared by a maximum, owners add ternary values and send the sums back."""

    def __init__(self, peer: TernGrad, wire: Wire) -> None:
        super().__init__(peer.size, wire)
        self.peer = peer
        self.shards = shards(peer.size, 1, wire.ranks)

    def _average(self, x: Vector, finite: bool) -> Vector | None:
        peer, mine = self.peer, self.shards[self.wire.rank]
        clipped = peer.clipped(x) if finite else np.zeros(self.size, np.float32)
        # The last word says whether a rank has a value that is not finite.
        terms = np.append(peer.scales(clipped), np.float32(not finite))
        self.wire.max(terms)
        if terms[-1]:
            return None
        of_value = np.repeat(terms[:-1], peer.layers)
        messages = [peer.encode(clipped[shard], of_value[shard])[0] for shard in self.shards]
        length = mine.stop - mine.start
        received = self.wire.to_owners(messages, len(messages[self.wire.rank]))
        (total,) = peer.add([(codes,) for codes in received], length)
        lengths = [-(-(shard.stop - shard.start) * peer.width // 8) for shard in self.shards]
        mean = np.empty(self.size, np.float32)
        for shard, row in zip(self.shards, self.wire.to_all(total, lengths), strict=True):
            mean[shard] = peer.decode((row,), of_value[shard])
        return mean
