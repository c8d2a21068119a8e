"""Speed of the sparse kernels on a 64 MiB tensor, one thread, in units of memcpy of the same tensor.

python -m benchmarks.sparse_kernels --runs 5
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

import sumwire
from benchmarks.kernels import Report, set_level
from sumwire.kernels import backend, sparse
from sumwire.lab.record import Record, add_option
from sumwire.lab.timing import against, seconds

SIZE = 1 << 24
BLOCK = 1 << 12
SHARDS = 4
REPEATS = 9
BARS = {"scan": "<= 0.55", "compact": "<= 0.7", "expand": "<= 0.6", "Sparse(4).encode": "<= 1.0"}


def tensor(density: float, row: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Noise in a share `density` of the rows, zeros in the others."""
    alive = np.repeat(rng.random(SIZE // row) < density, row)
    return np.where(alive, rng.standard_normal(SIZE, dtype=np.float32), np.float32(0))


def rows(report: Report, name: str, x: NDArray[np.float32], barred: bool) -> None:
    copy, out, acc = (np.ones(SIZE, np.float32) for _ in range(3))
    starts = np.arange(0, SIZE, BLOCK, dtype=np.int64)
    words, values = np.empty(SIZE // 64, np.uint64), np.ones(SIZE, np.float32)
    count = sparse.gather(x, starts, BLOCK, words, values)
    found = values[:count].copy()
    code = sparse.encode_index(words, SIZE)
    again, room = np.empty_like(words), np.empty(SIZE, np.uint8)

    codec = sumwire.Sparse(SHARDS)
    terms = codec.propose(x)
    payload = np.ones(codec.payload_room(terms, x.itemsize), np.uint8)
    calls: dict[str, Callable[[], object]] = {
        "scan": partial(sparse.scan, x, starts, BLOCK, words),
        "compact": partial(sparse.compact, x, starts, BLOCK, words, found),
        "gather": partial(sparse.gather, x, starts, BLOCK, words, values),
        "expand": partial(sparse.expand, words, found, starts, BLOCK, out),
        "expand, divided by 3": partial(sparse.expand, words, found, starts, BLOCK, out, 3.0),
        "accumulate": partial(sparse.accumulate, acc, words, found),
        "index_bytes": partial(sparse.index_bytes, words, SIZE),
        "encode_index": partial(sparse.encode_index, words, SIZE, room),
        "decode_index": partial(sparse.decode_index, code, SIZE, again),
        "gather + encode_index": lambda: (
            sparse.gather(x, starts, BLOCK, words, values),
            sparse.encode_index(words, SIZE, room),
        ),
        f"Sparse({SHARDS}).encode": partial(codec.encode, x, terms, rank=0, out=payload),
    }
    for kernel, call in calls.items():
        bar = BARS.get(kernel, "") if barred else ""
        figure = against(lambda: np.copyto(copy, x), call, REPEATS).ratio
        report.row(f"{name}: {kernel}", bar, figure)
    report.row(f"{name}: bits per coordinate of the index, mode {code[0]}", "", 8 * len(code) / SIZE)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--level", choices=("portable", "avx2", "avx512"), help="use no better instruction set")
    options.add_argument("--runs", type=int, default=5, help="how often to measure everything (default 5)")
    options.add_argument("--only", help="densities whose name contains this")
    add_option(options)
    given = options.parse_args()
    sumwire.set_num_threads(1)
    set_level(given.level)
    report, speeds = Report(), []
    cases = [
        ("5 %", 0.05, 1),
        ("0.1 %", 0.001, 1),
        ("30 %", 0.3, 1),
        ("100 %", 1.0, 1),
        ("5 % in rows of 64", 0.05, 64),
    ]
    for run in range(given.runs):
        print(f"run {run + 1} of {given.runs}", file=sys.stderr)
        for name, density, row in cases:
            if given.only and given.only not in name:
                continue
            x = tensor(density, row, np.random.default_rng(0))
            copy = np.ones_like(x)
            speeds.append(x.nbytes / sorted(seconds(partial(np.copyto, copy, x), cold=True) for _ in range(9))[4] / 1e9)
            rows(report, name, x, name == "5 %")
    print(f"{backend.describe()} kernels; memcpy of 64 MiB at {min(speeds):.1f} to {max(speeds):.1f} GB/s\n")
    report.print(given.runs)
    report.record(Record(given.json, seed=0), given.runs, speeds)


if __name__ == "__main__":
    main()
