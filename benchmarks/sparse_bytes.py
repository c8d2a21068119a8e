"""Bytes of a lossless round: what `Sparse` sends, compared with a dense ring and the best of the paper (`lab/lhc.py`).

    python -m benchmarks.sparse_bytes

Every worker draws its non-zeros independently from the same distribution. *zipf*: the k-th most frequent coordinate has
weight 1/k, and frequent ones are scattered over the tensor; *rows*: the same with whole rows of 64; *uniform*: all have
equal weight; *same*: all workers have the same non-zeros. The bytes of a worker are its payload without the segment of
its own shard, its summed segment to each of the others, and the lengths that are sent first, averaged over workers;
frames and headers of the transport are not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from sumwire import Sparse
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import MAX_EXPONENT, SketchTerms
from sumwire.codec.sparse.parts import SparseSum
from sumwire.kernels import sparse as kernels
from sumwire.lab import lhc
from sumwire.lab.record import Record, add_option

SIZE = 1 << 20
ROW = 64
WORKERS = (4, 16, 64)
DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
LAWS = ("zipf", "rows", "uniform")

BEYOND = (
    *((law, SIZE, 2, density) for law in ("zipf", "uniform") for density in (0.01, 0.1, 0.3)),
    *(("zipf", SIZE, workers, 0.5) for workers in WORKERS),
    *(("uniform", SIZE, workers, 1.0) for workers in WORKERS),
    *(("same", SIZE, 16, density) for density in (0.01, 0.3)),
    *(("zipf", 1 << 16, 64, density) for density in (0.001, 0.01, 0.3, 1.0)),
)
"""Cases where the paper is hardest to beat: small unions, few zeros, or shards of a few values."""

OTHERS = ("compaction", "sketch, predicted", "sketch, joined")
MOST_OF_LHC = 0.6
MOST_OF_DENSE = 1.03


@dataclass(frozen=True)
class Figures:
    """Result for one distribution and number of workers; densities as fractions, bytes relative to a dense ring."""

    law: str
    size: int
    workers: int
    density: float
    """As intended; `own` is that of the tensors that were drawn."""
    own: float
    union: float
    ours: float
    padded: float
    """As `ours`, with every summed segment padded to the longest, as gathers between more than 8 ranks send them."""
    best_of_lhc: float

    @property
    def ratio(self) -> float:
        return self.ours / self.best_of_lhc

    def record(self, record: Record, section: str, others: dict[str, float] | None = None) -> None:
        shares = {"sparse": self.ours, "sparse, padded": self.padded, "lhc": self.best_of_lhc, **(others or {})}
        record.add(
            section=section,
            law=self.law,
            size=self.size,
            workers=self.workers,
            density_percent=100 * self.density,
            own_percent=float(percent(self.own)),
            union_percent=float(percent(self.union)),
            percent_of_dense={name: float(percent(share)) for name, share in shares.items()},
            over_lhc=self.ratio,
        )

    def __str__(self) -> str:
        shares = (self.own, self.union, self.ours, self.padded, self.best_of_lhc)
        cells = (self.law, f"{self.size:,}", str(self.workers), *map(percent, shares), f"{self.ratio:.3f}")
        return "| " + " | ".join(cells) + " |"


def percent(share: float) -> str:
    """Three digits, without an exponent.

    >>> percent(0.00123), percent(1.0003)
    ('0.123', '100.0')
    """
    value = 100 * share
    return f"{value:.1f}" if value >= 99.95 else f"{value:#.3g}"


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


def measure(law: str, size: int, workers: int, density: float) -> Figures:
    """Encode and add a round of such tensors, and count bytes."""
    codec = Sparse(workers)
    values = np.random.default_rng(2).random(size, np.float32) + np.float32(0.5)
    payloads, union, own = [], np.zeros(size, np.bool_), 0.0
    for rank, here in enumerate(supports(law, size, workers, density)):
        x = np.where(here, values, np.float32(0))
        payloads.append(codec.encode(x, codec.propose(x), rank=rank))
        union |= here
        own += here.mean() / workers
    total = codec.add(payloads)
    assert isinstance(total, SparseSum)
    segments = total.closed().sizes
    others = workers - 1
    up = mean(payload.nbytes - payload.sizes[payload.rank] for payload in payloads)
    lengths = (24 + 8) * others
    dense, count = lhc.dense_bytes(size, workers), int(union.sum())
    return Figures(
        law,
        size,
        workers,
        density,
        own,
        count / size,
        (up + others * mean(segments) + lengths) / dense,
        (up + others * max(segments) + lengths) / dense,
        lhc.best_bytes(size, count, workers) / dense,
    )


def run(title: str, cases: list[tuple[str, int, int, float]]) -> list[Figures]:
    """Print a table, row by row."""
    print(f"\n{title}\n")
    print("| law | size | n | own | union | ours | ours, padded | LHC's best | ours / LHC |\n|" + "---|" * 9)
    found = []
    for case in cases:
        found.append(measure(*case))
        print(found[-1], flush=True)
    return found


def print_worst(found: list[Figures]) -> None:
    """Print the worst rows of a table."""
    print()
    rules: list[tuple[str, Callable[[Figures], float], float]] = [
        ("ours / LHC", lambda f: f.ratio, MOST_OF_LHC),
        ("ours, padded / LHC", lambda f: f.padded / f.best_of_lhc, MOST_OF_LHC),
        ("ours, padded / dense", lambda f: f.padded, MOST_OF_DENSE),
    ]
    for name, share, limit in rules:
        worst = max(found, key=share)
        missed = sum(share(figures) > limit for figures in found)
        where = f"{worst.law}, {worst.size:,}, n={worst.workers}, own {percent(worst.own)} %"
        print(f"- {name}: {share(worst):.3f} at worst ({where}); {missed} of {len(found)} are above {limit}")


def index_bits(size: int, record: Record) -> None:
    """Bits of index per entry, for scattered entries and for rows."""
    densities = (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9)
    print("\nBits of index per entry\n")
    print("| density, % | " + " | ".join(f"{100 * density:g}" for density in densities) + " |\n|" + "---|" * 8)
    for name, row in (("scattered", 1), ("rows of 64", ROW)):
        cells, rng = [], np.random.default_rng(3)
        for density in densities:
            here = np.repeat(rng.random(size // row) < density, row)
            words = np.packbits(here, bitorder="little").view(np.uint64)
            bits = float(8 * kernels.index_bytes(words, size) / here.sum())
            cells.append(f"{bits:.2f}")
            record.add(section="index", size=size, law=name, density=f"{100 * density:g} %", bits_per_entry=bits)
        print(f"| {name} | " + " | ".join(cells) + " |")


def compare_methods(found: list[Figures], record: Record) -> None:
    """Other lossless methods for the same tensors, by their formulas (docs/sparse.md)."""
    print("\nLossless methods\n")
    print("| n | own | union | Sparse | compaction | Sketch, predicted | Sketch, joined | LHC's best |\n|" + "---|" * 8)
    for one in found:
        codec, size = Sketch(one.workers), one.size
        # A tenth above the union, as in `predict`; or the sum over all workers.
        rooms = min(size, int(1.1 * one.union * size) + 1), min(size, int(one.workers * one.own * size))
        lanes = [SketchTerms(codec, (size,), MAX_EXPONENT, room) for room in rooms]
        sketches = [8 * (terms.index_words + terms.cells) / (4 * size) for terms in lanes]
        others = dict(zip(OTHERS, (1 / 32 + one.union, *sketches), strict=True))
        shares = (one.own, one.union, one.ours, *others.values(), one.best_of_lhc)
        print(f"| {one.workers} | " + " | ".join(map(percent, shares)) + " |")
        one.record(record, "zipf", others)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", type=int, default=SIZE, help=f"coordinates of the first table (default {SIZE})")
    add_option(options)
    given = options.parse_args()
    size, record = given.size, Record(given.json, seed=0)
    print("Densities and bytes in %; bytes relative to what a worker sends in a dense ring.")
    cases = [(law, size, workers, density) for law in LAWS for workers in WORKERS for density in DENSITIES]
    found = run("Independent non-zeros", cases)
    print_worst(found)
    compare_methods([figures for figures in found if figures.law == "zipf"], record)
    for figures in found:
        if figures.law != "zipf":
            figures.record(record, "other laws")
    index_bits(size, record)
    hard = run("Hard cases", list(BEYOND))
    print_worst(hard)
    for figures in hard:
        figures.record(record, "where it fails")


if __name__ == "__main__":
    main()
