"""How quantized tensors meet: at an owner who sends the mean back, at everybody, or along a ring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from sumwire.codec.options import one_of, switch
from sumwire.errors import ConfigError
from sumwire.lab.peers.base import Outcome, Parts, Peer, Vector, bits_of, mean_of
from sumwire.lab.peers.hops import ring
from sumwire.lab.peers.quantizer import Quantizer

Exchange = Literal["owner", "gather", "ring"]


class QuantizedPeer(Peer):
    """Tensors that are quantized, then averaged in one of three ways.

    "owner": each value has an owner (its shard's, or a server), who decodes all payloads, averages in float32, and
    quantizes the mean with `down` for all. One owner stands for all owners: shards begin at whole blocks.
    "gather": everyone receives and decodes everyone's payload; bits down grow with the number of workers.
    "ring": partial means are decoded, added to and quantized again at each of n - 1 hops (hops.py).

    Parameters
    ----------
    up, down : Quantizer
        For payloads, and for the mean that the owner sends; `down` defaults to `up`.
    feedback : bool
        Each worker adds to its tensor what quantizing the last one lost. Not with "ring", where no worker's tensor is
        quantized alone.
    server_feedback : bool
        The owner does the same with the mean.
    """

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        up: Quantizer,
        down: Quantizer | None = None,
        exchange: Exchange = "owner",
        feedback: bool = False,
        server_feedback: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(workers, size, seed=seed)
        self.up = up
        self.down = up if down is None else down
        self.exchange = one_of("exchange", exchange, ("owner", "gather", "ring"))
        feedback, server_feedback = switch("feedback", feedback), switch("server_feedback", server_feedback)
        if self.exchange == "ring" and feedback:
            raise ConfigError('feedback=True needs exchange="owner" or "gather": a ring quantizes partial sums')
        if self.exchange != "owner" and (server_feedback or down is not None):
            raise ConfigError('down and server_feedback need exchange="owner": nobody else sends a mean')
        self.unbiased = self.up.unbiased and self.down.unbiased and not (feedback or server_feedback)
        self.residuals = np.zeros((self.workers if feedback else 0, self.size), np.float32)
        self.server_residual = np.zeros(self.size if server_feedback else 0, np.float32)

    def held_back(self) -> Vector:
        held = super().held_back()
        if len(self.residuals):
            held += mean_of(self.residuals)
        if self.server_residual.size:
            held += self.server_residual
        return held

    def _average(self, tensors: Sequence[Vector]) -> Outcome:
        if self.exchange == "ring":
            mean, up, down = ring(tensors, self.up.block, lambda shard: self.up, lambda rank, shard: self.uniform)
            return Outcome(mean, self._per_value(up), self._per_value(down))
        sent: list[int] = []

        def decoded() -> Iterator[Vector]:
            for rank, x in enumerate(tensors):
                value, bits = self._send(x, rank)
                sent.append(bits)
                yield value

        mean = mean_of(decoded())
        up_bits = self._per_value(sum(sent) / self.workers)
        if self.exchange == "gather":
            return Outcome(mean, up_bits, up_bits * (self.workers - 1))
        mean, bits = self._send_back(mean)
        return Outcome(mean, up_bits, self._per_value(bits))

    def payloads(self, x: Vector, rank: int, shards: Sequence[slice]) -> tuple[list[Parts], Vector | None]:
        """What a worker sends for each shard; and all of that decoded, if its residual needs it.

        Shards are runs of whole blocks that cover the tensor, so payloads are those of the whole, cut in pieces.
        """
        if not len(self.residuals):
            return [self.up.encode(x[shard], self.uniform) for shard in shards], None
        x = x + self.residuals[rank]
        sent = [self.up.encode(x[shard], self.uniform) for shard in shards]
        value = self.decoded(sent, shards)
        self.residuals[rank] = x - value
        return sent, value

    def decoded(self, payloads: Sequence[Parts], shards: Sequence[slice]) -> Vector:
        """A worker's payloads as one tensor."""
        pieces = [self.up.decode(parts, _length(shard)) for parts, shard in zip(payloads, shards, strict=True)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def answer(self, mean: Vector, shard: slice) -> Parts:
        """What the owner of a shard sends to all: its mean."""
        if not self.server_residual.size:
            return self.down.encode(mean, self.uniform)
        mean = mean + self.server_residual[shard]
        parts = self.down.encode(mean, self.uniform)
        self.server_residual[shard] = mean - self.down.decode(parts, len(mean))
        return parts

    def _send(self, x: Vector, rank: int) -> tuple[Vector, int]:
        """What the others make of a worker's payload, and its bits."""
        whole = [slice(0, self.size)]
        payloads, value = self.payloads(x, rank, whole)
        return self.decoded(payloads, whole) if value is None else value, bits_of(payloads[0])

    def _send_back(self, mean: Vector) -> tuple[Vector, int]:
        parts = self.answer(mean, slice(0, self.size))
        return self.down.decode(parts, self.size), bits_of(parts)


def _length(shard: slice) -> int:
    return int(shard.stop - shard.start)
