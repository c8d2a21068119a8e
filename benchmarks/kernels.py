"""Speed of the Lattice codec on a 64 MiB tensor, one thread, in units of memcpy of the same tensor.

OMP_NUM_THREADS=1 python -m benchmarks.kernels
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import sumwire
from sumwire import Lattice
from sumwire.kernels import backend
from sumwire.lab.record import Record, add_option, spread
from sumwire.lab.timing import against, seconds

SIZE = 1 << 24
SHARD = 1 << 19
"""Lanes that one of four owners adds of a span of two million values."""
RNG = np.random.default_rng(0)


def layered(size: int) -> np.ndarray:
    """Noise whose scale changes every 4096 coordinates, as layers of a model do."""
    scales = np.exp(RNG.standard_normal(size // 4096)).astype(np.float32)
    return RNG.standard_normal(size, dtype=np.float32) * np.repeat(scales, 4096)


@dataclass
class Report:
    """Every figure of every run, by name."""

    bars: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=dict)

    def row(self, name: str, bar: str, figure: float) -> None:
        self.bars[name] = bar
        self.figures.setdefault(name, []).append(figure)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Name, bar and figures of each row; large figures and microseconds are integers."""
        for name, values in self.figures.items():
            whole = max(values) >= 25 or " us" in name
            figures = spread([round(value) for value in values] if whole else values)
            yield {"what": name, "bar": self.bars[name] or None, "value": figures}

    def print(self, runs: int) -> None:
        print(f"| one thread, x memcpy unless said | bar | median of {runs} runs | lowest | highest |")
        print("|---|---|---|---|---|")
        for line in self.lines():
            cells = [line["value"][key] for key in ("median", "lowest", "highest")]
            digits = 0 if isinstance(cells[1], int) else 2
            print(f"| {line['what']} | {line['bar'] or ''} | " + " | ".join(f"{c:.{digits}f}" for c in cells) + " |")

    def record(self, record: Record, runs: int, speeds: list[float]) -> None:
        """Append all rows, and the speeds of memcpy in GB/s."""
        about = {"level": level(), "runs": runs}
        for line in self.lines():
            record.add(section="kernels", **about, **line)
        record.add(section="memcpy", **about, what="memcpy of 64 MiB, GB/s", value=spread(speeds))


def codec_rows(report: Report) -> None:
    x, copy = layered(SIZE), np.ones(SIZE, np.float32)

    def memcpy() -> None:
        np.copyto(copy, x)

    fixed, energy, many = Lattice(4, 4, widths="fixed"), Lattice(4, 4), Lattice(8, 4)
    terms = fixed.propose(x)
    report.row("propose (norms)", "<= 0.6", against(memcpy, lambda: fixed.propose(x)).ratio)

    data = np.ones(SIZE // 2, np.uint8)
    plain = against(memcpy, lambda: fixed.encode(x, terms, rank=0, out=data))
    report.row("encode, fixed 4 bits", "<= 0.9", plain.ratio)
    own = energy.propose(x)

    def encode_energy() -> None:  # terms are new every round, so deriving the widths counts
        energy.encode(x, own | own, rank=0, out=data)

    report.row("encode, per-block widths, 4 bits on average", "<= 1.1", against(memcpy, encode_energy).ratio)
    work = x.copy()
    residual = against(memcpy, lambda: fixed.encode_in_place(work, terms, rank=0, out=data))
    report.row("encode with residual, in place, 4 bits", "<= 1.4", residual.ratio)
    for name, codec in (
        ("8-bit lanes, fixed", fixed),
        ("per-block widths, n=4", energy),
        ("per-block widths, n=8", many),
    ):
        joined = codec.propose(x)
        payload = codec.encode(x, joined, rank=0)
        total = codec.add([payload] * 4)
        out = np.ones(SIZE, np.float32)
        bar = "<= 1.0" if codec is fixed else ""
        report.row(f"decode, {name}", bar, against(memcpy, partial(codec.decode, total, out=out)).ratio)


def narrow_ratios(codec: Lattice, x: np.ndarray, copy: np.ndarray) -> tuple[float, float]:
    """Time of narrowing a shard that was just added, into memory that is reused, over memcpy of as many floats.

    That is what an owner does in every round of an exchange. A sum of SIZE lanes would come from DRAM, and fresh memory
    would add page faults. First with Python and the kernels in the cache, because a few blocks were narrowed before;
    then without, as after other work.
    """
    own, few = x[:SHARD], x[: 4 * codec.block]
    terms = codec.propose(own)
    payloads = [codec.encode(own, terms, rank=r) for r in range(4)] * (codec.workers // 4)
    small = codec.add([codec.encode(few, codec.propose(few), rank=0)] * codec.workers)
    lanes, room = np.ones(2 * SHARD, np.uint8), np.ones(2 * SHARD, np.uint8)
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for warm in (True, False) * 61:
        base = seconds(partial(np.copyto, copy, x)) / SIZE
        total = codec.add(payloads, out=lanes)
        if warm:
            small.narrow_packed(room)
        ratios[warm].append(seconds(partial(total.narrow_packed, room)) / SHARD / base)
    return statistics.median(ratios[True]), statistics.median(ratios[False])


def narrow_rows(report: Report) -> None:
    """Complete sums to 5 bits per value, and back."""
    x, copy, out = layered(SIZE), np.ones(SIZE, np.float32), np.ones(SIZE, np.float32)
    for workers, lanes in ((4, "8-bit"), (16, "16-bit")):
        codec = Lattice(workers, 4, down_bits=5)
        terms = codec.propose(x)
        total = codec.add([codec.encode(x, terms, rank=r) for r in range(4)] * (workers // 4))
        narrow = total.narrow()
        warm, cold = narrow_ratios(codec, x, copy)
        report.row(f"narrow, {lanes} lanes to 5 bits", "<= 0.35", warm)
        report.row(f"the same of {lanes} lanes, after other work", "", cold)
        slower = against(partial(codec.decode, total, out=out), partial(codec.decode, narrow, out=out))
        report.row(f"decode of the narrow sum, x that of {lanes} lanes", "<= 1.0", slower.ratio)


def add_rows(report: Report) -> None:
    """Eight payloads into 8-bit lanes, against decompressing, adding and compressing again."""
    codec = Lattice(8, 4, lane_bits=8, widths="fixed")
    xs = [RNG.standard_normal(SIZE, dtype=np.float32) for _ in range(8)]
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    payloads = [codec.encode(x, terms, rank=r) for r, x in enumerate(xs)]
    del xs
    lanes = np.ones(SIZE, np.uint8)
    total, one, data = np.ones(SIZE, np.float32), np.ones(SIZE, np.float32), np.ones(SIZE // 2, np.uint8)

    def add() -> None:
        codec.add(payloads, out=lanes)

    def decompress_add_recompress() -> None:
        codec.decode(payloads[0], out=total)
        for payload in payloads[1:]:
            codec.decode(payload, out=one)
            np.add(total, one, out=total)
        np.multiply(total, np.float32(1 / 8), out=total)
        codec.encode(total, terms, rank=0, out=data)

    # Not cold: an aggregator adds what has just come in.
    slower = against(add, decompress_add_recompress, repeats=9, cold=False)
    speed = against(add, add, repeats=15, cold=False)
    bits = sum(p.nbytes for p in payloads) * 8
    report.row("table add of 8 payloads into 8-bit lanes, Gbit/s of payload", ">= 120", bits / speed.seconds / 1e9)
    report.row("decompress + fp32 sum + recompress, x the table add", ">= 5", slower.ratio)


def thread_rows(report: Report) -> None:
    x = layered(SIZE)
    codec = Lattice(4, 4)
    terms, data = codec.propose(x), np.ones(SIZE // 2, np.uint8)

    def run(threads: int) -> None:
        sumwire.set_num_threads(threads)
        codec.encode(x, terms, rank=0, out=data)

    copy = np.ones(SIZE, np.float32)
    halves = (slice(0, SIZE // 2), slice(SIZE // 2, SIZE))

    def copy_on_two() -> None:
        list(pool.map(lambda half: np.copyto(copy[half], x[half]), halves))

    with ThreadPoolExecutor(2) as pool:
        yardstick = against(copy_on_two, lambda: np.copyto(copy, x))
    run(2)
    gain = against(lambda: run(2), lambda: run(1))
    sumwire.set_num_threads(1)
    report.row("memcpy on two threads, times as fast as on one", "yardstick", yardstick.ratio)
    report.row("encode on two threads, times as fast as on one", ">= 1.6", gain.ratio)


def overhead_rows(report: Report) -> None:
    cold = []
    for workers in (3, 5, 6, 7, 9):
        code = (
            f"import time, sumwire; t = time.perf_counter(); sumwire.Lattice({workers}); print(time.perf_counter() - t)"
        )
        cold.append(
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        )
    report.row("Lattice(n), cold, ms", "< 50", sorted(cold)[2] * 1e3)
    Lattice(4)
    report.row("Lattice(n), cached, us", "microseconds", min(seconds(lambda: Lattice(4)) for _ in range(200)) * 1e6)
    x = RNG.standard_normal(1000, dtype=np.float32)
    codec = Lattice(4)
    terms = codec.propose(x)
    calls = sorted(seconds(lambda: codec.encode(x, terms, rank=0)) for _ in range(2000))
    report.row("encode of 1,000 coordinates, us", "< 30", calls[1000] * 1e6)


def set_level(name: str | None) -> None:
    """Use no instruction set beyond this one."""
    if name is not None:
        from sumwire.kernels import native

        native.set_level(name)


def level() -> str:
    """The instruction set in use."""
    return backend.describe().removeprefix("native (").rstrip(")")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--level", choices=("portable", "avx2", "avx512"), help="use no better instruction set")
    options.add_argument("--runs", type=int, default=3, help="how often to measure everything (default 3)")
    add_option(options)
    given = options.parse_args()
    sumwire.set_num_threads(1)
    set_level(given.level)
    report, speeds = Report(), []
    for run in range(given.runs):
        print(f"run {run + 1} of {given.runs}", file=sys.stderr)
        x, copy = np.ones(SIZE, np.float32), np.ones(SIZE, np.float32)
        memcpy = partial(np.copyto, copy, x)
        speeds.append(x.nbytes / sorted(seconds(memcpy, cold=True) for _ in range(15))[7] / 1e9)
        for rows in (codec_rows, narrow_rows, add_rows, thread_rows, overhead_rows):
            rows(report)
    print(f"{backend.describe()} kernels; memcpy of 64 MiB at {min(speeds):.1f} to {max(speeds):.1f} GB/s\n")
    report.print(given.runs)
    report.record(Record(given.json, seed=0), given.runs, speeds)


if __name__ == "__main__":
    main()
