"""What a Sparse frame claims costs nothing: memory goes with the bytes that arrived, and sums are still the true ones.

Each script runs in a process of its own, whose peak is the system's word, not ours.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20

PRELUDE = """
import resource, sys
import numpy as np
from sumwire import FrameError, Sparse
from sumwire.codec.sparse.parts import SparseTerms
from sumwire.wire import frame
from tests.wire.fuzz import forge
from tests.wire.test_golden_sparse import spec_index

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def claimed(codec, size, rank, body, kind=1, lo=0, hi=1):
    "A payload's frame with this body, of a tensor that nobody has."
    x = np.zeros(64, np.float32)
    small = frame.to_bytes(codec.encode(x, codec.propose(x), rank=rank).part(lo, hi))
    return forge(small, body=body, size=size, bits=kind)

def index(*gaps, k):
    "Mode 1, by hand."
    bits = "".join("1" * (gap >> k) + "0" + format(gap & (1 << k) - 1, f"0{k}b")[::-1] for gap in gaps)
    coded = int(bits[::-1], 2).to_bytes(-(-len(bits) // 8), "little")
    code = bytes([1, k]) + len(gaps).to_bytes(4, "little") + coded
    return code + bytes(-len(code) % 4)

def read(raw, codec, size):
    return frame.parse(raw).payload(codec, SparseTerms(codec, (size,)))

before = peak()
"""

EPILOGUE = """
print(peak() - before)
"""


def growth(script: str) -> int:
    """Bytes by which the peak of a process grows."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script + EPILOGUE],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize(("size", "k"), [(1 << 30, 26), (1 << 36, 31)])
def test_a_few_bytes_of_a_huge_tensor_are_read_and_added(size: int, k: int) -> None:
    script = f"""
size, codec = {size}, Sparse(2)
bits = size // 2  # of each shard
one = claimed(codec, size, 0, index(7, bits - 9, k={k}) + np.array([1.5, 2], "<f4").tobytes())
two = claimed(codec, size, 1, index(7, 5, k={k}) + np.array([0.25, -3], "<f4").tobytes())
assert len(one) < 200
total = frame.to_bytes(codec.add([read(one, codec, size), read(two, codec, size)]))
body = total[72:]
at, used = spec_index(body, bits)
values = np.frombuffer(body[-(-used // 4) * 4 :], "<f4")
assert dict(zip(at, values.tolist(), strict=True)) == {{7: 1.75, 13: -3.0, bits - 1: 2.0}}, (at, values)
"""
    assert growth(script) < 32 * MIB


WITHOUT_VALUES = {
    "full": b"\5\0\0\0" + bytes(4),
    "runs": b"\2\0\xff\xff\xff\x3f\x1f" + b"\xfe" * 5 + bytes(60),
    "plain": b"\3\0" + bytes(66),
    "words": b"\4\0" + bytes(66),
    "gaps": b"\1\0\xff\xff\xff\x3f" + bytes(66),
}


def test_claims_without_values_are_refused() -> None:
    script = f"""
codec = Sparse(2)
for name, body in {WITHOUT_VALUES}.items():
    for size in (1 << 30, 1 << 36):
        try:
            read(claimed(codec, size, 0, body), codec, size)
        except FrameError as error:
            assert "truncated" in str(error) or "count" in str(error) or "beyond" in str(error), (name, error)
        else:
            raise AssertionError(f"{{name}} was believed")
"""
    assert growth(script) < 32 * MIB


def test_an_empty_frame_of_every_size_leaves_nothing_behind() -> None:
    script = """
codec = Sparse(4096, block=64)
total = None
for k in range(40):
    size = (1 << 36) - 64 * k
    for rank in range(3):
        payload = read(claimed(codec, size, rank, bytes(4)), codec, size)
        assert frame.buffers(codec.add([payload]))[-1] == bytes(4)
"""
    assert growth(script) < 64 * MIB


def test_many_entries_cost_in_proportion_to_their_bytes() -> None:
    """Hundreds of kilobytes each from four workers, in a tensor that would have 256 GiB."""
    script = """
rng, size, n, codec = np.random.default_rng(0), 1 << 36, 4, Sparse(4, shards=1)
arrived, truth, payloads = 0, {}, []
from sumwire.kernels import sparse
for rank in range(n):
    at = np.unique(rng.integers(0, size, 50_000))
    at[:1000] = np.arange(1000)
    values = rng.standard_normal(len(at)).astype(np.float32)
    code = sparse.encode_positions(at, size).tobytes()
    raw = claimed(codec, size, rank, code + bytes(-len(code) % 4) + values.tobytes())
    arrived += len(raw)
    payloads.append(read(raw, codec, size))
    for place, value in zip(at.tolist(), values, strict=True):
        truth[place] = truth[place] + value if place in truth else value
truth = dict(sorted(truth.items()))
expected = list(truth), np.array(list(truth.values()), np.float32).tobytes()
del truth
before = peak()
total = codec.add(payloads).closed()
assert peak() - before < 64 * arrived, (peak() - before, arrived)
found, used = sparse.decode_positions(total.data, size, len(total.data))
assert found.tolist() == expected[0]
assert total.data[-(-used // 4) * 4 :].tobytes() == expected[1]
"""
    growth(script)
