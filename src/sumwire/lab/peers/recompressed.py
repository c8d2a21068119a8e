"""Decompress, add, recompress: what Sumwire avoids, with Sumwire's own codec."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from sumwire import Lattice
from sumwire.lab.peers.base import Outcome, Peer, Vector, mean_of


class DecompressAddRecompress(Peer):
    """A server that decodes every worker's payload, averages in float32 and encodes the mean with the same Lattice.

    No published scheme: it is the accuracy baseline for adding in compressed form. Rotation, table and rounding are
    those of `Lattice(workers, bits)`; the mean travels as a payload of one worker, under terms of its own.
    Bits: payloads and terms, up and down; own terms up, everyone's and those of the mean down.

    >>> import numpy as np
    >>> outcome = DecompressAddRecompress(2, 4096).average([np.ones(4096, np.float32)] * 2)
    >>> bool(8 < outcome.bits < 8.1), bool(abs(outcome.mean.mean() - 1) < 0.05)
    (True, True)
    """

    paper = "the parameter server of bidirectional compression, against which THC (Li et al., NSDI 2024) argues"

    def __init__(self, workers: int, size: int, *, bits: int = 4, seed: int = 0) -> None:
        super().__init__(workers, size, seed=seed)
        self.codec = Lattice(self.workers, bits, seed=self.seed)
        self.round = 0
        self.name = f"recompressed-{bits}"

    def _average(self, tensors: Sequence[Vector]) -> Outcome:
        codec = self.codec
        terms = reduce(or_, (codec.propose(x) for x in tensors))
        payloads = [codec.encode(x, terms, rank=rank, round_id=self.round) for rank, x in enumerate(tensors)]
        mean = mean_of(codec.decode(payload) for payload in payloads)
        own = codec.propose(mean)
        # A round of its own, so that the mean is not rotated and rounded as the payloads were.
        back = codec.encode(mean, own, rank=0, round_id=self.round + 1)
        self.round += 2
        sent = sum(payload.nbytes for payload in payloads) / self.workers
        up, down = sent + terms.nbytes, back.nbytes + own.nbytes + terms.nbytes
        return Outcome(codec.decode(back), self._per_value(8 * up), self._per_value(8 * down))
