"""Blocks in streams and back: native equals reference, and lanes come back in the order of coordinates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.kernels.lattice import streams
from sumwire.kernels.lattice.blocks import pack_planes
from tests.kernels.lanes import packed_lanes

native = pytest.importorskip("sumwire.kernels.lattice.native", exc_type=OSError, reason="built without a compiler")


@given(st.sampled_from([64, 128, 256, 1024]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 32), st.integers(1, 4))
def test_lanes_come_back_in_order(block: int, width: int, bits: int, count: int) -> None:
    """Whatever an aggregator adds for each index of each byte lands at the index's coordinate."""
    rng, lane = np.random.default_rng((block, width, bits, count)), 1 if bits <= 8 else 2 if bits <= 16 else 4
    indices = rng.integers(0, min(1 << width, 1 << bits), (count, block))
    data = np.packbits(pack_planes(indices, width).reshape(-1), bitorder="little")
    merged = packed_lanes((data[:, None] >> np.arange(0, 8, width) & (1 << width) - 1).reshape(-1), width, bits)
    starts = np.flatnonzero(rng.permutation(3 * count) < count) * block * lane
    found = [np.zeros(3 * count * block * lane, np.uint8) for _ in range(2)]
    for spread, out in zip((streams.spread_lanes, native.spread_lanes), found, strict=True):
        spread(merged, block, width, bits, lane, starts, out)
        for start, row in zip(starts, indices, strict=True):
            np.testing.assert_array_equal(out[start : start + block * lane].view(f"<u{lane}"), row)
    np.testing.assert_array_equal(*found)


@given(st.integers(1, 70), st.lists(st.integers(0, 400), max_size=20))
def test_blocks_are_gathered(nbytes: int, places: list[int]) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, 500).astype(np.uint8)
    starts = np.array(places, np.int64)
    found = [np.empty(len(places) * nbytes, np.uint8) for _ in range(2)]
    for gather, out in zip((streams.gather_blocks, native.gather_blocks), found, strict=True):
        gather(data, starts, nbytes, out)
    np.testing.assert_array_equal(*found)
    assert found[0].tobytes() == b"".join(data[place : place + nbytes].tobytes() for place in places)
