"""Blocks that get lost and workers that come late, around the real codec: as with loss="lossy" over a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import or_

import numpy as np
from numpy.typing import NDArray

from sumwire import Lattice
from sumwire.codec.algebra import Span
from sumwire.codec.lattice.parts import LatticePayload
from sumwire.codec.options import real_number, whole_number
from sumwire.errors import ConfigError
from sumwire.lab.simulate.methods import ByCodec, Exchange, Floats


@dataclass(frozen=True)
class Conditions:
    """What goes wrong.

    >>> Conditions(late=3, quorum=8).absent(10)
    2
    """

    loss: float = 0.0
    """Share of blocks that are lost, of each worker's payload and of each worker's result."""
    late: int = 0
    """Workers, drawn anew in every round, that come when the others are done."""
    quorum: int = 0
    """Workers that a round waits for; 0: all."""
    slowdown: float = 2.0
    """Time that a late worker takes, of that of the others."""
    jitter: float = 0.05
    """Deviation of a worker's time, of its mean."""

    def __post_init__(self) -> None:
        real_number("loss", self.loss, 0.0, 0.9)
        whole_number("late", self.late, 0)
        whole_number("quorum", self.quorum, 0)

    def absent(self, workers: int) -> int:
        """Workers that are not in a round."""
        if max(self.late, self.quorum) > workers:
            raise ConfigError(f"late={self.late} and quorum={self.quorum} must not be above workers={workers}")
        return min(self.late, workers - (self.quorum or workers))


class OverNetwork(ByCodec):
    """A Lattice whose blocks may be lost on the way to the aggregator, and the sums' on the way to each worker.

    Every block is lost independently of all others: blocks fit a packet. With feedback, what did not arrive goes back
    into the residual, and sums are divided by all workers; without, it is gone, and every block is divided by the
    payloads in it. A block of the result that a worker does not get is zero for it: then workers' parameters differ.
    A worker that is not in a round does not get its result late, but in time, as from an aggregator that sends to all.
    """

    def __init__(self, codec: Lattice, conditions: Conditions, *, seed: int) -> None:
        super().__init__(codec.for_network())
        self.conditions = conditions
        self.own_means = conditions.loss > 0
        self.random = np.random.default_rng(seed)
        self._edges: list[int] = []
        self.seconds = 0.0
        """Time of all rounds so far, where 1 is the mean time of a worker that is not late."""

    def average(self, xs: Sequence[Floats]) -> Exchange:
        codec, size = self.codec, xs[0].size
        self.rounds += 1
        present = self._present(len(xs))
        if self.residuals is None:
            given = list(xs)
        else:
            given = [memory.correct(x) for memory, x in zip(self.residuals, xs, strict=True)]
            for rank in set(range(len(xs))) - set(present):
                self.residuals[rank].unsent(xs[rank])
        terms = reduce(or_, (codec.propose(given[rank]) for rank in present))
        arrived: list[LatticePayload] = []
        sent = 0
        for rank in present:
            payload = (
                codec.encode(given[rank], terms, rank=rank, round_id=self.rounds)
                if self.residuals is None
                else self.residuals[rank].encode(terms, rank=rank, round_id=self.rounds)
            )
            sent += payload.nbytes
            for (lo, hi), lost in self._runs(terms.sizes):
                if not lost:
                    arrived.append(payload.part(lo, hi))
                elif self.residuals is not None:
                    self.residuals[rank].lost(payload.part(lo, hi))
        total = codec.add(arrived).whole()
        mean = codec.decode(total, missing="zero", divide_by="count" if self.residuals is None else "workers")
        bits = 8 * (sent / len(xs) + terms.nbytes) / size, 8 * (total.nbytes + terms.nbytes) / size
        if not self.own_means:
            return Exchange((mean,), *bits)
        return Exchange([self._received(mean, terms.sizes) for _ in xs], *bits)

    def _present(self, workers: int) -> list[int]:
        """Workers in this round: all, or those that came before it closed."""
        conditions = self.conditions
        late = self.random.choice(workers, conditions.late, replace=False)
        times = 1 + conditions.jitter * self.random.standard_normal(workers)
        times[late] *= conditions.slowdown
        count = workers - conditions.absent(workers)
        order = np.argsort(times, kind="stable")
        self.seconds += float(times[order[count - 1]])
        return sorted(order[:count].tolist())

    def _runs(self, sizes: NDArray[np.int64]) -> Iterator[tuple[Span, bool]]:
        """Runs of blocks that are all lost, or all not."""
        edges = self._edges = self._edges or _edges(sizes)
        lost = self.random.random(len(edges) - 1) < self.conditions.loss
        starts = [0, *(np.flatnonzero(lost[1:] != lost[:-1]) + 1).tolist(), len(lost)]
        for a, b in pairwise(starts):
            yield (edges[a], edges[b]), bool(lost[a])

    def _received(self, mean: Floats, sizes: NDArray[np.int64]) -> Floats:
        at = np.concatenate([[0], np.cumsum(sizes)])
        mine = mean.copy()
        for (lo, hi), lost in self._runs(sizes):
            if lost:
                mine[at[lo] : at[hi]] = 0
        return mine


def _edges(sizes: NDArray[np.int64]) -> list[int]:
    """Where blocks may be parted: those of fewer than 8 coordinates share bytes."""
    last = len(sizes)
    return [edge for edge in range(last + 1) if edge in (0, last) or max(sizes[edge - 1], sizes[edge]) >= 8]
