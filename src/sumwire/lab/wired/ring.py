"""Partial means that travel along a ring, are added to and quantized again at each hop: MX formats, DynamiQ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sumwire.lab.peers.base import Parts, Vector
from sumwire.lab.peers.dynamic import SUPERGROUP, DynamiQ
from sumwire.lab.peers.exchange import QuantizedPeer
from sumwire.lab.peers.hops import hop, shards
from sumwire.lab.peers.quantizer import Draw, Quantizer
from sumwire.lab.wired.exchange import RankExchange
from sumwire.lab.wired.messages import Format
from sumwire.lab.wired.wire import Wire

Plan = tuple[Callable[[slice], Quantizer], Callable[[int, slice], Draw]]
"""The quantizer of a shard, and the random numbers of a rank for it."""


class RingExchange(RankExchange):
    """n - 1 hops to reduce, with the order of `lab.peers.hops.ring`, and an all-gather."""

    def __init__(self, size: int, block: int, wire: Wire) -> None:
        super().__init__(size, wire)
        self.shards = shards(size, block, wire.ranks)

    def _plan(self, x: Vector, finite: bool) -> Plan | None:
        """How all ranks quantize in this round; None, at all of them, if one has a value that is not finite."""
        raise NotImplementedError

    def _average(self, x: Vector, finite: bool) -> Vector | None:
        plan = self._plan(x, finite)
        if plan is None:
            return None
        quantizer_of, draw_of = plan
        forms = [self._form(quantizer_of, shard) for shard in self.shards]
        rank, ranks = self.wire.rank, self.wire.ranks
        partial = np.zeros(forms[rank - 1].size, np.float32) if finite else None
        parts: Parts | None = None
        for step in range(1, ranks + 1):
            k = (rank - step) % ranks
            parts = self._hop(partial, x, self.shards[k], forms[k], draw_of) if finite else None
            if step < ranks:
                following = forms[(k - 1) % ranks]
                received = following.read(self.wire.to_next(forms[k].write(parts), following.nbytes))
                partial = None if received is None else following.values(received)
        mean = np.empty(self.size, np.float32)
        rows = self.wire.to_all(forms[rank].write(parts), [form.nbytes for form in forms])
        for shard, form, row in zip(self.shards, forms, rows, strict=True):
            received = form.read(row)
            if received is None:
                return None
            mean[shard] = form.values(received)
        return mean

    def _hop(
        self,
        partial: Vector | None,
        x: Vector,
        shard: slice,
        form: Format,
        draw_of: Callable[[int, slice], Draw],
    ) -> Parts | None:
        if partial is None or not np.isfinite(partial).all():
            return None
        if not form.size:
            return ()
        return hop(partial, x[shard], self.wire.ranks, form.quantizer, draw_of(self.wire.rank, shard))

    def _form(self, quantizer_of: Callable[[slice], Quantizer], shard: slice) -> Format:
        return Format(quantizer_of(shard), shard.stop - shard.start)


class QuantizedRing(RingExchange):
    """One quantizer for all hops."""

    def __init__(self, peer: QuantizedPeer, wire: Wire) -> None:
        super().__init__(peer.size, peer.up.block, wire)
        self.peer = peer
        lengths = {shard.stop - shard.start for shard in self.shards}
        self._forms = {length: Format(peer.up, length) for length in lengths}

    def _plan(self, x: Vector, finite: bool) -> Plan | None:
        return (lambda shard: self.peer.up), (lambda rank, shard: self.peer.uniform)

    def _form(self, quantizer_of: Callable[[slice], Quantizer], shard: slice) -> Format:
        return self._forms[shard.stop - shard.start]


class DynamicRing(RingExchange):
    """DynamiQ: norms of supergroups are gathered first, and decide the widths of the round."""

    def __init__(self, peer: DynamiQ, wire: Wire) -> None:
        super().__init__(peer.size, SUPERGROUP, wire)
        self.peer = peer

    def _plan(self, x: Vector, finite: bool) -> Plan | None:
        norms = self.peer.norms(x if finite else np.zeros(self.size, np.float32))
        status = np.array([not finite], np.uint16)
        message = np.concatenate([norms, status]).view(np.uint8)
        rows = [row.view(np.uint16) for row in self.wire.to_all(message, [len(message)] * self.wire.ranks)]
        if any(row[-1] for row in rows):
            return None
        return self.peer.plan([row[:-1] for row in rows])
