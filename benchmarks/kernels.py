"""Speed of the Lattice codec on a 64 MiB tensor, one thread, in units of memcpy of the same tensor.

OMP_NUM_THREADS=1 python -m benchmarks.kernels
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import sumwire
from benchmarks.timing import against, seconds
from sumwire import Lattice, kernels

SIZE = 1 << 24
RNG = np.random.default_rng(0)


def layered(size: int) -> np.ndarray:  # type: ignore[type-arg]
    """Noise whose scale changes every 4096 coordinates, as layers of a model do."""
    scales = np.exp(RNG.standard_normal(size // 4096)).astype(np.float32)
    return RNG.standard_normal(size, dtype=np.float32) * np.repeat(scales, 4096)


def row(name: str, bar: str, figure: str) -> None:
    print(f"| {name} | {bar} | {figure} |", flush=True)


def codec_rows() -> None:
    x, copy = layered(SIZE), np.ones(SIZE, np.float32)

    def memcpy() -> None:
        np.copyto(copy, x)

    fixed, energy, many = Lattice(4, 4, widths="fixed"), Lattice(4, 4), Lattice(8, 4)
    terms = fixed.propose(x)
    row("propose (norms)", "<= 0.6", str(against(memcpy, lambda: fixed.propose(x))))

    data = np.ones(SIZE // 2, np.uint8)
    row("encode, fixed 4 bits", "<= 0.9", str(against(memcpy, lambda: fixed.encode(x, terms, rank=0, out=data))))
    own = energy.propose(x)

    def encode_energy() -> None:  # terms are new every round, so deriving the widths counts
        fresh = energy.propose(x[:0]).__class__(energy, own.shape, own.scales)
        energy.encode(x, fresh, rank=0, out=data)

    row("encode, per-block widths, 4 bits on average", "<= 1.1", str(against(memcpy, encode_energy)))
    work = x.copy()
    row(
        "encode with residual, in place, 4 bits",
        "<= 1.4",
        str(against(memcpy, lambda: fixed.encode_in_place(work, terms, rank=0, out=data))),
    )
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
        row(f"decode, {name}", bar, str(against(memcpy, lambda c=codec, t=total, o=out: c.decode(t, out=o))))  # type: ignore[misc]


def add_rows() -> None:
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

    ratio = against(add, decompress_add_recompress, repeats=9)
    speed = against(add, add, repeats=15)
    bits = sum(p.nbytes for p in payloads) * 8
    row("table add of 8 payloads into 8-bit lanes, Gbit/s of payload", ">= 120", f"{bits / speed.seconds / 1e9:.0f}")
    row("decompress + fp32 sum + recompress, x the table add", ">= 5", str(ratio))


def thread_row() -> None:
    x = layered(SIZE)
    codec = Lattice(4, 4)
    terms, data = codec.propose(x), np.ones(SIZE // 2, np.uint8)

    def run(threads: int) -> None:
        sumwire.set_threads(threads)
        codec.encode(x, terms, rank=0, out=data)

    copy = np.ones(SIZE, np.float32)
    halves = (slice(0, SIZE // 2), slice(SIZE // 2, SIZE))

    def copy_on_two() -> None:
        list(pool.map(lambda half: np.copyto(copy[half], x[half]), halves))

    with ThreadPoolExecutor(2) as pool:
        yardstick = against(copy_on_two, lambda: np.copyto(copy, x))
    run(2)
    gain = against(lambda: run(2), lambda: run(1))
    sumwire.set_threads(1)
    row("memcpy on two threads, times as fast as on one", "yardstick", str(yardstick))
    row("encode on two threads, times as fast as on one", ">= 1.6", str(gain))


def overhead_rows() -> None:
    cold = []
    for workers in (3, 5, 6, 7, 9):
        code = (
            f"import time, sumwire; t = time.perf_counter(); sumwire.Lattice({workers}); print(time.perf_counter() - t)"
        )
        cold.append(
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        )
    row("Lattice(n), cold, ms", "< 50", f"{sorted(cold)[2] * 1e3:.0f}")
    Lattice(4)
    row("Lattice(n), cached, us", "microseconds", f"{min(seconds(lambda: Lattice(4)) for _ in range(200)) * 1e6:.0f}")
    x = RNG.standard_normal(1000, dtype=np.float32)
    codec = Lattice(4)
    terms = codec.propose(x)
    calls = sorted(seconds(lambda: codec.encode(x, terms, rank=0)) for _ in range(2000))
    row("encode of 1,000 coordinates, us", "< 30", f"{calls[1000] * 1e6:.0f}")


def main() -> None:
    sumwire.set_threads(1)
    backend = kernels.backend()
    if len(sys.argv) > 1:
        backend.set_level(sys.argv[1])
    level = backend.level() if hasattr(backend, "level") else "NumPy"
    x, copy = np.ones(SIZE, np.float32), np.ones(SIZE, np.float32)
    base = sorted(seconds(lambda: np.copyto(copy, x)) for _ in range(15))[7]
    print(
        f"{backend.NAME} kernels ({level}); memcpy of 64 MiB: {base * 1e3:.1f} ms, {SIZE * 4 / base / 1e9:.1f} GB/s\n"
    )
    print("| one thread, x memcpy unless said: median (quartiles) | bar | measured |\n|---|---|---|")
    codec_rows()
    add_rows()
    thread_row()
    overhead_rows()


if __name__ == "__main__":
    main()
