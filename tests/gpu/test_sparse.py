"""Triton's interpreter returns the reference's bytes for the Sparse kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire.kernels.sparse import reference
from tests.gpu.cases import held, same

pytest.importorskip("triton", reason='Triton is not installed: pip install ".[gpu]"')
kernels = pytest.importorskip("sumwire.kernels.triton.sparse")

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@settings(settings.get_profile("interpreter"), max_examples=20)
@given(
    size=st.sampled_from([1, 63, 64, 1000, 1025, 3000]),
    block=st.sampled_from([64, 256, 1024]),
    density=st.sampled_from([0.0, 0.05, 0.6, 1.0]),
    kind=st.sampled_from(["float32", "float16", "uint16", "float64"]),
    shards=st.integers(1, 3),
    divisor=st.sampled_from([1.0, 3.0, 7.0]),
    seed=st.integers(0, 2**16),
)
def test_scan_compact_expand(
    size: int, block: int, density: float, kind: str, shards: int, divisor: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * 40 * (rng.random(size) < density)).astype(np.float32)
    special = np.array([0x80000000, 0x7FC00001, 0xFF800003, 0x7F800000, 1], np.uint32)  # -0, NaNs, Inf, a denormal
    x.view(np.uint32)[rng.integers(0, size, 5)] = special
    with np.errstate(all="ignore"):
        x = x.astype(kind) if kind != "uint16" else (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    starts = np.arange(0, size, block)[seed % shards :: shards].astype(np.int64)
    total = reference.bits(starts, block, size)
    words, values = np.zeros(-(-total // 64), np.uint64), np.zeros(total, x.dtype)
    count = reference.gather(x, starts, block, words, values)
    tensor = torch.from_numpy(x).view(torch.bfloat16) if kind == "uint16" else torch.from_numpy(x)
    bitmap, found = torch.full((len(words),), 5), torch.zeros(total, dtype=tensor.dtype)
    assert kernels.gather(tensor, starts, block, bitmap, found) == count
    raw = found.view(torch.uint16) if kind == "uint16" else found
    assert same(bitmap, words)
    assert same(raw, values)
    fewer = torch.zeros(count // 2, dtype=tensor.dtype)
    assert kernels.compact(tensor, starts, block, bitmap, fewer) == count
    assert torch.equal(fewer.view(torch.uint8), found[: count // 2].view(torch.uint8))
    if kind == "float32":
        out, mine = np.ones(size, np.float32), torch.ones(size)
        reference.expand(words, values, starts, block, out, divisor)
        kernels.expand(bitmap, held(values), starts, block, mine, divisor)
        assert same(mine, out)
