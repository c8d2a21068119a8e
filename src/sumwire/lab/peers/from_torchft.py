"""torchft's quantized all-reduce by its own kernels, between workers of one process.

The kernels are Triton's and need a GPU; here Triton interprets them on the CPU, as slowly as that is. With a GPU of
compute capability 9 they quantize rows to fp8, otherwise to 8-bit integers, with a float32 scale for each row.

This module is run in a process of its own: Triton compiles or interprets all kernels of a process, and that is decided
when it is imported, which other packages may do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.distributed import ReduceOp

from sumwire.lab.peers.base import Vector
from sumwire.lab.peers.installed import Average, Received, UnavailableError

ROW = 512
"""Values of a row: torchft takes rows of parameters as they are, and gradients here are flat."""


def schemes() -> Mapping[str, Average]:
    """Its one scheme, with the type that it chooses on this machine."""
    native = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
    return {f"allreduce_quantized, {'fp8' if native else 'int8'}": average}


def average(xs: Sequence[Vector]) -> Received:
    """One round. Bits of a message include scales, and what rows and shares of workers are filled up with.

    By the convention of base.py, bits of the (n - 1) / n of a tensor that a worker sends in either phase are counted as
    those of a whole tensor.
    """
    with TemporaryDirectory(prefix="sumwire-") as name:
        given, found = Path(name, "given.npy"), Path(name, "found.npy")
        np.save(given, np.stack(xs))
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(given), str(found)],
            env=os.environ | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise UnavailableError(last[0])
        mean, bits = np.split(np.load(found), [xs[0].size])
    each = float(bits[0]) / xs[0].size
    return Received([mean], each, each)


def reduce(xs: Sequence[Vector]) -> tuple[Vector, int]:
    """The mean and the bits of a payload, step by step as `torchft.collectives.allreduce_quantized` has them."""
    from torchft.quantization import fused_dequantize_from_fp8, fused_quantize_into_fp8, fused_reduce_fp8

    workers, size = len(xs), xs[0].size
    tensors = [torch.from_numpy(np.pad(x, (0, -size % ROW)).reshape(-1, ROW)) for x in xs]
    sent = [fused_quantize_into_fp8([tensor], workers) for tensor in tensors]
    reduced = []
    for rank in range(workers):
        received = torch.stack([payload.view(workers, -1)[rank] for payload in sent])
        fused_reduce_fp8([tensors[rank]], received.view(-1), workers, rank, ReduceOp.AVG)
        reduced.append(received[rank])
    mean = torch.zeros_like(tensors[0])
    fused_dequantize_from_fp8([mean], torch.stack(reduced).view(-1), workers)
    return mean.reshape(-1)[:size].numpy(), 8 * sent[0].numel()


if __name__ == "__main__":
    result, payload_bits = reduce(np.load(sys.argv[1]))
    np.save(sys.argv[2], np.append(result.astype(np.float64), payload_bits))
