"""Bytes of a lossless round: what `Sparse` sends, compared with a dense ring and the best of the paper (`lhc.py`).

The bytes of a worker are its payload without the segment of its own shard, its summed segment to each of the others,
and the lengths that are sent first, averaged over workers; frames and headers of the transport are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from sumwire import Sparse
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import MAX_EXPONENT, SketchTerms
from sumwire.codec.sparse.parts import SparseSum
from sumwire.lab import lhc

LAWS = ("zipf", "rows", "uniform")
ROW = 64


@dataclass(frozen=True)
class Shares:
    """A round of some tensors; densities as fractions, bytes relative to a dense ring."""

    size: int
    workers: int
    own: float
    union: float
    ours: float
    padded: float
    """As `ours`, with every summed segment padded to the longest, as gathers between more than 8 ranks send them."""
    best_of_lhc: float

    @property
    def ratio(self) -> float:
        return self.ours / self.best_of_lhc

    def others(self) -> dict[str, float]:
        """Other lossless methods for the same tensors, by their formulas (docs/sparse.md)."""
        codec, size = Sketch(self.workers), self.size
        # A tenth above the union, as in `predict`; or the sum over all workers.
        rooms = min(size, int(1.1 * self.union * size) + 1), min(size, int(self.workers * self.own * size))
        lanes = [SketchTerms(codec, (size,), MAX_EXPONENT, room) for room in rooms]
        predicted, joined = (8 * (terms.index_words + terms.cells) / (4 * size) for terms in lanes)
        return {"compaction": 1 / 32 + self.union, "sketch, predicted": predicted, "sketch, joined": joined}


def count(tensors: Iterable[NDArray[np.float32]], workers: int) -> Shares:
    """Encode and add a round of these tensors, one for each worker, and count bytes."""
    codec = Sparse(workers)
    payloads, union, own = [], np.zeros(0, np.bool_), 0.0
    for rank, x in enumerate(tensors):
        payloads.append(codec.encode(x, codec.propose(x), rank=rank))
        here = x != 0
        union = here if rank == 0 else union | here
        own += here.mean() / workers
    total = codec.add(payloads)
    assert isinstance(total, SparseSum)
    segments = total.closed().sizes
    others = workers - 1
    up = mean(payload.nbytes - payload.sizes[payload.rank] for payload in payloads)
    lengths = (24 + 8) * others
    dense, nonzeros = lhc.dense_bytes(union.size, workers), int(union.sum())
    return Shares(
        union.size,
        workers,
        own,
        nonzeros / union.size,
        (up + others * mean(segments) + lengths) / dense,
        (up + others * max(segments) + lengths) / dense,
        lhc.best_bytes(union.size, nonzeros, workers) / dense,
    )


def drawn(law: str, size: int, workers: int, density: float) -> Iterator[NDArray[np.float32]]:
    """Tensors whose non-zeros every worker draws independently from the same distribution.

    *zipf*: the k-th most frequent coordinate has weight 1/k, and frequent ones are scattered over the tensor; *rows*:
    the same with whole rows of 64; *uniform*: all have equal weight; *same*: all workers have the same non-zeros.
    """
    values = np.random.default_rng(2).random(size, np.float32) + np.float32(0.5)
    for here in supports(law, size, workers, density):
        yield np.where(here, values, np.float32(0))


def chances(law: str, size: int, density: float) -> NDArray[np.float64]:
    """Probability that each row is non-zero, such that a fraction `density` of all rows is."""
    rows = size // ROW if law == "rows" else size
    weights = 1 / np.arange(1.0, rows + 1) if law in ("zipf", "rows") else np.ones(rows)
    if density >= 1:
        return np.ones(rows)
    low, high = density, density * rows * rows
    while high / low > 1 + 1e-9:
        rate = (low * high) ** 0.5
        low, high = (rate, high) if -np.expm1(-rate * weights).mean() < density else (low, rate)
    return np.random.default_rng(0).permutation(-np.expm1(-high * weights))


def supports(law: str, size: int, workers: int, density: float) -> Iterator[NDArray[np.bool_]]:
    """Masks of the non-zeros of each worker."""
    rng, chance = np.random.default_rng(1), chances(law, size, density)
    for _ in range(workers):
        if law == "same":
            rng = np.random.default_rng(1)
        yield np.repeat(rng.random(len(chance)) < chance, size // len(chance))
