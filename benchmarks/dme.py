"""Mean-estimation schemes: speed on one thread, compared with EDEN in torch, and error.

OMP_NUM_THREADS=1 python -m benchmarks.dme
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import sumwire
from benchmarks.eden_torch import EdenTorch
from sumwire.dme import (
    Correlated,
    Drive,
    Eden,
    MeanScheme,
    Rotated,
    StochasticBinary,
    StochasticLevels,
    VariableLength,
)
from sumwire.lab.record import Record, add_option, spread
from sumwire.lab.timing import seconds

Vector = NDArray[np.float32]


def inputs(size: int) -> dict[str, Vector]:
    rng = np.random.default_rng(0)
    return {
        "normal": rng.standard_normal(size, np.float32),
        "Student t(3)": rng.standard_t(3, size).astype(np.float32),
    }


def nmse(x: Vector, y: Vector) -> float:
    return float(np.square((y - x).astype(np.float64)).sum() / np.square(x.astype(np.float64)).sum())


def time_in_turn(calls: dict[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Seconds of every call, measured in turn, so that slow spells of the machine affect all of them."""
    for call in calls.values():
        call()
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            took[name].append(seconds(call))
    return took


def cell(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.1f} [{min(ratios):.1f}-{max(ratios):.1f}]"


def eden_table(size: int, runs: int, record: Record) -> None:
    """Sumwire against torch with the same bits, in the same run."""
    xs = inputs(size)
    x, name = xs["normal"], f"2^{size.bit_length() - 1}"
    print(f"EDEN on {name} values, one thread; speedup over torch as median and range of {runs} runs\n")
    print(
        "| bits | encode, ms (GB/s) | decode, ms (GB/s) | encode, speedup over torch | decode, speedup | ",
        end="",
    )
    print("NMSE normal: ours / torch | NMSE t(3): ours / torch |")
    print("|---" * 7 + "|")
    for bits in (1, 2, 3, 4):
        ours, theirs = Eden(bits), EdenTorch(bits)
        message, sent = ours.encode(x), theirs.encode(torch.from_numpy(x), 0)
        took = time_in_turn(
            {
                "encode": lambda s=ours: s.encode(x),  # type: ignore[misc]
                "decode": lambda s=ours, m=message: s.decode(m),  # type: ignore[misc]
                "torch encode": lambda s=theirs: s.encode(torch.from_numpy(x), 0),  # type: ignore[misc]
                "torch decode": lambda s=theirs, m=sent: s.decode(m),  # type: ignore[misc]
            },
            runs,
        )
        cells: list[str] = [f"{bits}"]
        line: dict[str, Any] = {}
        for verb in ("encode", "decode"):
            middle = statistics.median(took[verb])
            line |= {f"{verb}_ms": 1e3 * middle, f"{verb}_gb_per_second": x.nbytes / middle / 1e9}
            cells.append(f"{1e3 * middle:.0f} ({x.nbytes / middle / 1e9:.2f})")
        for verb in ("encode", "decode"):
            ratios = [b / a for a, b in zip(took[verb], took[f"torch {verb}"], strict=True)]
            line[f"{verb}_speedup"] = spread(ratios)
            cells.append(cell(ratios))
        for law, values in xs.items():
            peer = theirs.decode(theirs.encode(torch.from_numpy(values), 1)).numpy()
            errors = {"ours": nmse(values, ours.decode(ours.encode(values))), "torch": nmse(values, peer)}
            line["nmse_normal" if law == "normal" else "nmse_t3"] = errors
            cells.append(f"{errors['ours']:.5f} / {errors['torch']:.5f}")
        print("| " + " | ".join(cells) + " |", flush=True)
        record.add(section="eden", values=size, bits=bits, runs=runs, **line)


def scheme_table(size: int, runs: int, record: Record) -> None:
    """All schemes, and the addable Lattice, as multiples of memcpy."""
    x = inputs(size)["normal"]
    copy = np.ones_like(x)
    print(f"\nAll schemes on 2^{size.bit_length() - 1} normal values, one thread (medians of {runs} runs)\n")
    print("| scheme | encode, x memcpy | decode, x memcpy | encode GB/s | decode GB/s | bits per value | NMSE |")
    print("|---" * 7 + "|")
    schemes: list[tuple[str, MeanScheme]] = [
        ("StochasticBinary()", StochasticBinary()),
        ("StochasticLevels(16)", StochasticLevels(16)),
        ("Rotated(16)", Rotated(16)),
        ("Correlated(16, workers=4)", Correlated(16, workers=4)),
        ('VariableLength("sqrt")', VariableLength()),
        ("VariableLength(16)", VariableLength(16)),
        ("Drive()", Drive()),
        ("Eden(4)", Eden(4)),
        ("Eden(8)", Eden(8)),
    ]
    for name, scheme in schemes:
        message = scheme.encode(x)
        took = time_in_turn(
            {
                "memcpy": lambda: np.copyto(copy, x),
                "encode": lambda s=scheme: s.encode(x),  # type: ignore[misc]
                "decode": lambda s=scheme, m=message: s.decode(m),  # type: ignore[misc]
            },
            runs,
        )
        row(name, took, x, 8 * len(message) / size, nmse(x, scheme.decode(message)), record)
    lattice = Rotated(16).lattice(1)
    terms = lattice.propose(x)
    payload = lattice.encode(x, terms, rank=0)
    took = time_in_turn(
        {
            "memcpy": lambda: np.copyto(copy, x),
            "encode": lambda: lattice.encode(x, lattice.propose(x), rank=0),
            "decode": lambda: lattice.decode(payload),
        },
        runs,
    )
    bits = 8 * (payload.nbytes + terms.scales.nbytes) / size
    row("Rotated(16).lattice(1), addable", took, x, bits, nmse(x, lattice.decode(payload)), record)


def row(name: str, took: dict[str, list[float]], x: Vector, bits: float, error: float, record: Record) -> None:
    verbs = ("encode", "decode")
    ratios = {verb: [b / a for a, b in zip(took["memcpy"], took[verb], strict=True)] for verb in verbs}
    speeds = {verb: x.nbytes / statistics.median(took[verb]) / 1e9 for verb in verbs}
    cells = [f"`{name}`", *map(cell, ratios.values()), *(f"{speed:.2f}" for speed in speeds.values())]
    print("| " + " | ".join([*cells, f"{bits:.3f}", f"{error:.5f}"]) + " |", flush=True)
    record.add(
        section="schemes",
        values=x.size,
        scheme=name,
        runs=len(took["memcpy"]),
        **{f"{verb}_over_memcpy": spread(ratios[verb]) for verb in verbs},
        **{f"{verb}_gb_per_second": speeds[verb] for verb in verbs},
        bits_per_value=bits,
        nmse=error,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log-size", type=int, default=24, help="log2 of the vector's size (default 24)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each measurement (default 5)")
    add_option(parser)
    options = parser.parse_args()
    record = Record(options.json, seed=0)
    torch.set_num_threads(1)
    sumwire.set_num_threads(1)
    eden_table(1 << options.log_size, options.runs, record)
    scheme_table(1 << options.log_size, options.runs, record)


if __name__ == "__main__":
    main()
