"""Cost of one more worker in a Sparse sum of 64, 1,024 and 16,384 workers: time per payload must not grow with n.

python -m benchmarks.sparse_scale --runs 3

The size of tensors does not depend on n. A sum is computed in parts, as in a server. The baseline is the dense float32
sum of such a tensor, timed in turn with each part. Both are CPU times: on a shared machine, wall time of an add of
seconds would include the work of others, and that of a dense sum of microseconds would not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

import sumwire
from sumwire import Sparse
from sumwire.codec.sparse.parts import SparsePayload, SparseSum
from sumwire.kernels import backend
from sumwire.lab.record import Record, add_option, spread
from sumwire.wire.frame import parse, to_bytes

WORKERS = (64, 1024, 16_384)
DENSITY = 0.01
TENSORS = 16
"""Number of distinct tensors; further workers repeat them."""
MAX_GROWTH = 2.0
"""Limit of the time per payload, relative to that with 64 workers."""

Steps = dict[str, float]


def per_payload(n: int, size: int) -> Steps:
    """Time of each step per payload, relative to the baseline."""
    codec, rng = Sparse(n), np.random.default_rng(0)
    xs = [np.where(rng.random(size) < DENSITY, rng.standard_normal(size), 0).astype(np.float32) for _ in range(TENSORS)]
    terms, dense = codec.propose(xs[0]), np.zeros(size, np.float32)
    made = [codec.encode(x, terms, rank=0) for x in xs]
    frames = [to_bytes(payload) for payload in made]
    payloads = [replace(made[rank % TENSORS], rank=rank) for rank in range(n)]

    def dense_sum() -> None:
        for x in xs:
            np.add(dense, x, out=dense)

    def ratio(calls: list[Callable[[], object]], count: float) -> float:
        """Median ratio of calls that handle `count` payloads each."""
        pairs = [(cpu_seconds(dense_sum) / TENSORS, cpu_seconds(call) / count) for call in calls]
        return statistics.median(own / base for base, own in pairs)

    spans = codec.parts(size, 0, 1)
    return {
        "encode": ratio([lambda: [codec.encode(x, terms, rank=0) for x in xs]] * 9, TENSORS),
        "read and check its frame": ratio([lambda: [parse(raw).payload(codec, terms) for raw in frames]] * 9, TENSORS),
        "add": ratio([partial(add, [p.part(*span) for p in payloads]) for span in spans], n / len(spans)),
    }


def add(parts: list[SparsePayload]) -> None:
    total = parts[0].codec.add(parts)
    assert isinstance(total, SparseSum)
    total.closed()


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=3, help="repetitions of all measurements (default 3)")
    options.add_argument("--size", type=int, default=1 << 18, help="values of a tensor (default 262144)")
    options.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers of workers")
    add_option(options)
    given = options.parse_args()
    sumwire.set_num_threads(1)
    measured: list[dict[int, Steps]] = []
    for run in range(given.runs):
        print(f"run {run + 1} of {given.runs}", file=sys.stderr)
        measured.append({n: per_payload(n, given.size) for n in given.workers})
    few = given.workers[0]
    kind = backend.name()
    print(f"{given.size} values, {DENSITY:.0%} of them non-zero; CPU time of one thread; {kind} kernels\n")
    print(f"| step, per payload | n | x dense sum, median of {given.runs} | min | max | x n = {few} | limit |")
    print("|---|---|---|---|---|---|---|")
    record = Record(given.json, seed=0)
    for step in measured[0][few]:
        for n in given.workers:
            ratios = [run[n][step] for run in measured]
            growth = statistics.median(run[n][step] / run[few][step] for run in measured)
            limit = f"<= {MAX_GROWTH}" if n != few else ""
            cells = [f"{v:.2f}" for v in (statistics.median(ratios), min(ratios), max(ratios), growth)]
            print(f"| {step} | {n:,} | {' | '.join(cells)} | {limit} |")
            record.add(
                step=step,
                workers=n,
                size=given.size,
                nonzero_percent=100 * DENSITY,
                runs=given.runs,
                over_dense_sum=spread(ratios),
                over_64_workers=growth if few == WORKERS[0] else None,
                bar=limit or None,
            )


if __name__ == "__main__":
    main()
