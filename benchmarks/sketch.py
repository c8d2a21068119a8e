"""The Sketch codec: how often peels complete, and how fast insert and peel are on one thread.

python -m benchmarks.sketch
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import SketchTerms
from sumwire.kernels import backend, sketch
from sumwire.lab.record import Record, add_option
from sumwire.lab.timing import against

Support = tuple[int, NDArray[np.uint32]]


def scattered(nonzeros: int, rng: np.random.Generator) -> Support:
    size = 20 * nonzeros
    return size, np.sort(rng.choice(size, nonzeros, replace=False)).astype(np.uint32)


def rows(nonzeros: int, rng: np.random.Generator, width: int = 128) -> Support:
    """One row of an embedding in twenty is live, all of it."""
    live = nonzeros // width
    which = np.sort(rng.choice(20 * live, live, replace=False))
    return 20 * live * width, (which[:, None] * width + np.arange(width)).reshape(-1).astype(np.uint32)


def columns(nonzeros: int, rng: np.random.Generator, width: int = 1024) -> Support:
    """The same one column in twenty is live in every row."""
    live, height = width // 20, -(-nonzeros // (width // 20))
    which = np.sort(rng.choice(width, live, replace=False))
    return width * height, (np.arange(height)[:, None] * width + which).reshape(-1).astype(np.uint32)


SUPPORTS: dict[str, Callable[[int, np.random.Generator], Support]] = {
    "random": scattered,
    "rows of 128": rows,
    "rows of 1024": partial(rows, width=1024),
    "live columns": columns,
}


def completes(support: Support, rows_per_nonzero: float, trial: int) -> bool:
    """Whether a peel leaves nothing. Which values are in the cells does not matter."""
    size, at = support
    codec = Sketch(1, rows_per_nonzero=rows_per_nonzero, seed=trial)
    terms = SketchTerms(codec, (size,), 127, len(at))
    geometry = terms.geometry(trial)
    index = np.zeros(terms.index_words, np.uint64)
    sketch.mark(geometry, at, index)
    candidates = sketch.candidates(geometry, index)
    cells, values = np.zeros(terms.cells, np.int64), np.empty(len(candidates), np.int64)
    left = sketch.peel(geometry, candidates, cells, values, np.empty_like(cells))
    return not left.any()


def success_table(trials: int, nonzeros: int, record: Record) -> None:
    print(f"Peels without leftovers, of {trials}, at {nonzeros} non-zeros (5 % of the tensor):\n")
    loads = (1.20, 1.23, 1.26, 1.30, 1.40)
    print("| support | " + " | ".join(f"{load:.2f} rows per non-zero" for load in loads) + " |")
    print("|---" * (len(loads) + 1) + "|")
    for name, make in SUPPORTS.items():
        rng = np.random.default_rng(0)
        supports = [make(nonzeros, rng) for _ in range(trials)]
        done = [sum(completes(s, load, trial) for trial, s in enumerate(supports)) for load in loads]
        print(f"| {name} | " + " | ".join(f"{count} ({100 * count / trials:.1f} %)" for count in done) + " |")
        for load, count in zip(loads, done, strict=True):
            record.add(
                section="peels",
                support=name,
                nonzeros=nonzeros,
                nonzero_percent=5,
                cells_per_nonzero=f"{load:.2f}",
                trials=trials,
                peeled=count,
                percent=round(100 * count / trials, 1),
            )


def speed_table(repeats: int, record: Record) -> None:
    size, rng = 1 << 24, np.random.default_rng(0)
    x = np.where(rng.random(size, np.float32) < 0.05, rng.standard_normal(size, np.float32), np.float32(0))
    codec = Sketch(1)
    terms = codec.propose(x)
    geometry, (at, words) = terms.geometry(0), sketch.nonzeros(x)
    values, _ = sketch.quantize(words, terms.exponent, terms.lsb)
    payload = codec.encode(x, terms, rank=0)
    cells, rest, index = np.zeros_like(payload.cells), np.empty_like(payload.cells), np.zeros_like(payload.index)
    found, means, copy = np.empty(len(at), np.int64), np.zeros(size, np.float32), np.ones(size, np.float32)

    steps: dict[str, Callable[[], object]] = {
        "find non-zeros": lambda: sketch.nonzeros(x),
        "to lattice integers": lambda: sketch.quantize(words, terms.exponent, terms.lsb),
        "insert": lambda: sketch.insert(geometry, at, values, cells),
        "mark in the index": lambda: sketch.mark(geometry, at, index),
        "checksum": lambda: sketch.checksum(geometry.key, at, values),
        "candidates from the index": lambda: sketch.candidates(geometry, payload.index),
        "peel": lambda: sketch.peel(geometry, at, payload.cells, found, rest),
        "to float32 means": lambda: sketch.finish(at, found, terms.lsb, 1, means),
        "encode, all of it": lambda: codec.encode(x, terms, rank=0),
        "decode, all of it": lambda: codec.decode(payload),
    }
    print(f"\n64 MiB at 5 %: {len(at)} non-zeros, a payload of {payload.nbytes / 1e6:.1f} MB; one thread, medians:\n")
    print("| step | ms | ns per non-zero | GB/s of non-zero float32 | x memcpy of the tensor |")
    print("|---|---|---|---|---|")
    for name, step in steps.items():
        timing = against(lambda: np.copyto(copy, x), step, repeats)
        each = timing.seconds / len(at) * 1e9
        print(f"| {name} | {timing.seconds * 1e3:.1f} | {each:.1f} | {4 / each:.2f} | {timing.ratio:.2f} |")
        record.add(
            section="steps",
            size=size,
            nonzeros=len(at),
            payload_mb=payload.nbytes / 1e6,
            threads=1,
            step=name,
            ms=timing.seconds * 1e3,
            ns_per_nonzero=each,
            gb_per_second=4 / each,
            over_memcpy=timing.ratio,
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trials", type=int, default=200, help="peels of each kind (default 200)")
    options.add_argument("--nonzeros", type=int, default=50_000, help="values in each (default 50000)")
    options.add_argument("--repeats", type=int, default=15, help="timings of each step (default 15)")
    add_option(options)
    given = options.parse_args()
    record = Record(given.json, seed=0)
    print(f"{backend.describe()} kernels\n")
    success_table(given.trials, given.nonzeros, record)
    speed_table(given.repeats, record)


if __name__ == "__main__":
    main()
