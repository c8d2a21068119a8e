"""Bytes of a lossless round: what `Sparse` sends, compared with a dense ring and the best of the paper (`lab/lhc.py`).

    python -m benchmarks.sparse_bytes

How tensors are drawn and what is counted: `sumwire.lab.sparse_bytes`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sumwire.kernels import sparse as kernels
from sumwire.lab.record import Record, add_option
from sumwire.lab.sparse_bytes import LAWS, ROW, Shares, count, drawn

SIZE = 1 << 20
WORKERS = (4, 16, 64)
DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)

BEYOND = (
    *((law, SIZE, 2, density) for law in ("zipf", "uniform") for density in (0.01, 0.1, 0.3)),
    *(("zipf", SIZE, workers, 0.5) for workers in WORKERS),
    *(("uniform", SIZE, workers, 1.0) for workers in WORKERS),
    *(("same", SIZE, 16, density) for density in (0.01, 0.3)),
    *(("zipf", 1 << 16, 64, density) for density in (0.001, 0.01, 0.3, 1.0)),
)
"""Cases where the paper is hardest to beat: small unions, few zeros, or shards of a few values."""

MOST_OF_LHC = 0.6
MOST_OF_DENSE = 1.03


@dataclass(frozen=True)
class Figures:
    """Result for one distribution and number of workers."""

    law: str
    density: float
    """As intended; `own` of `shares` is that of the tensors that were drawn."""
    shares: Shares

    def record(self, record: Record, section: str, others: dict[str, float] | None = None) -> None:
        found = self.shares
        shares = {"sparse": found.ours, "sparse, padded": found.padded, "lhc": found.best_of_lhc, **(others or {})}
        record.add(
            section=section,
            law=self.law,
            size=found.size,
            workers=found.workers,
            density_percent=100 * self.density,
            own_percent=float(percent(found.own)),
            union_percent=float(percent(found.union)),
            percent_of_dense={name: float(percent(share)) for name, share in shares.items()},
            over_lhc=found.ratio,
        )

    def __str__(self) -> str:
        found = self.shares
        shares = (found.own, found.union, found.ours, found.padded, found.best_of_lhc)
        cells = (self.law, f"{found.size:,}", str(found.workers), *map(percent, shares), f"{found.ratio:.3f}")
        return "| " + " | ".join(cells) + " |"


def percent(share: float) -> str:
    """Three digits, without an exponent.

    >>> percent(0.00123), percent(1.0003)
    ('0.123', '100.0')
    """
    value = 100 * share
    return f"{value:.1f}" if value >= 99.95 else f"{value:#.3g}"


def measure(law: str, size: int, workers: int, density: float) -> Figures:
    """Count the bytes of a round of such tensors."""
    return Figures(law, density, count(drawn(law, size, workers, density), workers))


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
        ("ours / LHC", lambda f: f.shares.ratio, MOST_OF_LHC),
        ("ours, padded / LHC", lambda f: f.shares.padded / f.shares.best_of_lhc, MOST_OF_LHC),
        ("ours, padded / dense", lambda f: f.shares.padded, MOST_OF_DENSE),
    ]
    for name, share, limit in rules:
        worst = max(found, key=share)
        missed = sum(share(figures) > limit for figures in found)
        case = worst.shares
        where = f"{worst.law}, {case.size:,}, n={case.workers}, own {percent(case.own)} %"
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
        of, others = one.shares, one.shares.others()
        shares = (of.own, of.union, of.ours, *others.values(), of.best_of_lhc)
        print(f"| {of.workers} | " + " | ".join(map(percent, shares)) + " |")
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
