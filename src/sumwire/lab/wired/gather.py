"""Payloads that everyone gets and decodes: QSGD, TopK, Deep Gradient Compression, EF-sign."""

from __future__ import annotations

from collections.abc import Callable

from sumwire.lab.peers.base import Parts, Vector, mean_of
from sumwire.lab.peers.quantizer import Quantizer
from sumwire.lab.wired.exchange import RankExchange
from sumwire.lab.wired.messages import Format
from sumwire.lab.wired.wire import Wire


class GatherExchange(RankExchange):
    """One all-gather. `encode` makes this rank's payload, and keeps its state."""

    def __init__(self, size: int, quantizer: Quantizer, encode: Callable[[Vector], Parts], wire: Wire) -> None:
        super().__init__(size, wire)
        self.encode = encode
        self.form = Format(quantizer, size)

    def _average(self, x: Vector, finite: bool) -> Vector | None:
        message = self.form.write(self.encode(x) if finite else None)
        payloads = [self.form.read(row) for row in self.wire.to_all(message, [self.form.nbytes] * self.wire.ranks)]
        found = [parts for parts in payloads if parts is not None]
        return mean_of(map(self.form.values, found)) if len(found) == len(payloads) else None
