"""Encode and decode need their output and at most 1 MiB per thread beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np, sumwire
sumwire.set_num_threads(2)
codec = sumwire.Lattice(4, 4)
small = np.ones(3_000_000, np.float32)
codec.decode(codec.encode(small, codec.propose(small), rank=0))     # everything loaded and cached
x = np.random.default_rng(0).standard_normal(1 << 24, dtype=np.float32)
terms = codec.propose(x)
terms.layout(codec)
data, mean = np.ones(terms.payload_bytes(codec), np.uint8), np.ones(x.size, np.float32)
payload = codec.encode(x, terms, rank=0, out=data)
total = payload + payload

def peak(call):
    open("/proc/self/clear_refs", "w").write("5")
    read = lambda key: int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1])
    before = read("VmRSS")
    result = call()
    return (read("VmHWM") - before) * 1024

print(peak(lambda: codec.encode(x, terms, rank=1, out=data)))
print(peak(lambda: codec.decode(total, out=mean)))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_peak_memory() -> None:
    from sumwire.kernels import backend

    if backend.name() != "native":
        pytest.skip("the reference trades memory for clarity")
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    encode, decode = (int(line) for line in result.stdout.split())
    assert encode <= 2 << 20
    assert decode <= 2 << 20
