"""Time of every GPU kernel, for whoever has a GPU: prints a table to send back, with what the bytes moved would allow.

python -m benchmarks.gpu                        # on a GPU
python -m benchmarks.gpu --size 3000 --runs 1   # on a CPU by Triton's interpreter, with TRITON_INTERPRET=1: no speeds

Every kernel's result is compared with the host's, bit for bit, before it is timed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import triton

import sumwire
from benchmarks.gpu_calls import Workload, sparse_cases
from sumwire.kernels import lattice as host

GIGA = 1e9


def timed(call: Callable[[], object], runs: int, device: str) -> float:
    """Median seconds of a call, with the host's part of it: uploads, and waiting where a kernel must."""
    call()
    found = []
    for _ in range(runs):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def check(work: Workload) -> None:
    """Raise unless measure, encode and decode have the host's bytes on this device."""
    codec, device = work.codec, work.x.device
    x = work.x.cpu()
    scales, found = np.empty(work.blocks, np.float32), np.empty(work.blocks, np.float32)
    host.measure(
        x.numpy(),
        codec.scheme,
        scales,
    )
    host.measure(work.x, codec.scheme, found)  # type: ignore[arg-type]
    if scales.tobytes() != found.tobytes():
        raise SystemExit("measure has other bits than on the host: please report that, with this GPU's name")
    layout = work.layout
    args = codec.scheme, work.terms.scales, layout.classes, layout.widths, work.keys
    data = np.empty(layout.payload_bytes, np.uint8)
    mine = torch.empty(layout.payload_bytes, dtype=torch.uint8, device=device)
    left, other = np.empty(work.size, np.float32), torch.empty(work.size, device=device)
    host.encode(args[0], x.numpy(), *args[1:], data, left)
    host.encode(args[0], work.x, *args[1:], mine, other)  # type: ignore[arg-type]
    lanes = work.lanes.cpu().numpy()
    mean, out = np.empty(work.size, np.float32), work.out
    rest = work.counts, work.terms.scales, layout.classes, work.keys.sign
    host.decode(codec.scheme, lanes, *rest, mean, 0, work.blocks)
    host.decode(codec.scheme, work.lanes, *rest, out, 0, work.blocks)  # type: ignore[arg-type]
    for name, ours, right in (("encode", mine, data), ("residual", other, left), ("decode", out, mean)):
        if ours.cpu().numpy().tobytes() != right.tobytes():
            raise SystemExit(f"{name} has other bits than on the host: please report that, with this GPU's name")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1 << 25, help="values of the tensor")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--block", type=int, default=512, help="coordinates of a block: 64 to 2**20")
    args = parser.parse_args()
    if args.size < 1 or args.runs < 1 or args.workers < 2:
        parser.error("--size and --runs are at least 1, --workers at least 2")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("torch sees no GPU here; TRITON_INTERPRET=1 and a small --size run the kernels on the CPU")
    name = torch.cuda.get_device_name() if device == "cuda" else f"interpreter on {platform.machine()}: not a speed"
    print(f"Sumwire {sumwire.__version__}, torch {torch.__version__}, Triton {triton.__version__}, {name}")
    work = Workload(sumwire.Lattice(args.workers, block=args.block), args.size, device)
    check(work)
    copy, source = torch.empty_like(work.x), work.x
    base = timed(lambda: copy.copy_(source), args.runs, device)
    rate = 2 * copy.nbytes / base
    print(f"measure, encode and decode have the host's bits; copy: {base * 1e6:.1f} us, {rate / GIGA:.1f} GB/s\n")
    print("| kernel | us | bytes per value | GB/s | x its bytes at the rate of copy |")
    print("|---|---|---|---|---|")
    for case in work.lattice_cases() + sparse_cases(args.size, device):
        took = timed(case.call, args.runs, device)
        moved = case.moved * args.size
        print(
            f"| {case.name} | {took * 1e6:.1f} | {case.moved:.2f} | {moved / took / GIGA:.1f} | "
            f"{took * rate / moved:.2f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
