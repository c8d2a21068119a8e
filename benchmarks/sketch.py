"""The Sketch codec: how often peels complete, and how fast insert and peel are on one thread.

python -m benchmarks.sketch
"""

from __future__ import annotations

import argparse

import numpy as np

from sumwire.kernels import backend
from sumwire.lab.record import Record, add_option
from sumwire.lab.sketching import SUPPORTS, completes, steps_of
from sumwire.lab.timing import against


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
    measured = steps_of(x)
    nonzeros, payload_mb = measured.nonzeros, measured.payload_bytes / 1e6
    print(f"\n64 MiB at 5 %: {nonzeros} non-zeros, a payload of {payload_mb:.1f} MB; one thread, medians:\n")
    print("| step | ms | ns per non-zero | GB/s of non-zero float32 | x memcpy of the tensor |")
    print("|---|---|---|---|---|")
    for name, step in measured.steps.items():
        timing = against(measured.copy, step, repeats)
        each = timing.seconds / nonzeros * 1e9
        print(f"| {name} | {timing.seconds * 1e3:.1f} | {each:.1f} | {4 / each:.2f} | {timing.ratio:.2f} |")
        record.add(
            section="steps",
            size=size,
            nonzeros=nonzeros,
            payload_mb=payload_mb,
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
