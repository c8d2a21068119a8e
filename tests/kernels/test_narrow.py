"""Every compiled instruction set narrows and decodes to the reference's bytes, whatever hypothesis picks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import Lattice
from sumwire.codec.lattice.narrow import segments_of
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.kernels.lattice import narrowing as reference
from sumwire.kernels.lattice import segments as widths
from sumwire.kernels.lattice.lanes import lane_bytes
from tests.strategies import BLOCKS

library = pytest.importorskip("sumwire.kernels.native", exc_type=OSError, reason="built without a compiler")
native = pytest.importorskip("sumwire.kernels.lattice.native")

pytestmark = pytest.mark.usefixtures("level")


class Case:
    """Lanes as workers might have added them: of any spread, some blocks without payloads, some nearly all 0."""

    def __init__(self, workers: int, bits: int, down: float, block: int, blocks: int, tail: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.codec = Lattice(workers, bits, block=block, down_bits=down, energy=float(rng.choice([0, 0.5, 1])))
        self.size = block * blocks + tail % block
        scales = np.exp(rng.choice([0, 1, 4, 30]) * rng.standard_normal(self.codec.blocks(self.size)))
        scales[rng.random(len(scales)) < 0.1] = 0
        self.scales = scales.clip(0, 1e30).astype(np.float32)
        terms = LatticeTerms(self.codec, (self.size,), self.scales)
        self.classes, self.sizes = terms.layout(self.codec).classes, terms.sizes
        self.scheme, self.cut = self.codec.scheme, segments_of(terms, self.codec)
        self.counts = rng.integers(0, workers + 1, len(scales)).astype(np.int32)
        if rng.random() < 0.5:
            self.counts[:] = workers
        pieces = []
        for size, cls, count in zip(self.sizes, self.classes, self.counts, strict=True):
            spec = self.scheme.lattices[cls]
            if spec is not None:
                top = int(count) * spec.granularity
                spread = rng.choice([0.0, 1e-3, 0.05, 0.2, 1.0])
                lanes = np.clip(np.rint(rng.normal(top / 2, top * spread, size)), 0, top)
                lanes[rng.random(size) < rng.choice([0, 0, 0.5, 0.99])] = top // 2
                pieces.append(lanes.astype(f"<u{spec.lane_bytes}").view(np.uint8))
        self.lanes = np.concatenate([np.empty(0, np.uint8), *pieces])
        assert len(self.lanes) == lane_bytes(self.scheme, self.sizes, self.classes).sum()


CASES = st.builds(
    Case,
    st.sampled_from([1, 2, 3, 8, 64, 300, 5000, 65536]),
    st.integers(1, 8),
    st.floats(1, 12),
    BLOCKS,
    st.integers(0, 40),
    st.integers(0, 1 << 12),
    st.integers(0, 2**32 - 1),
)


@given(CASES, st.integers(0, 2**32 - 1))
def test_narrow_and_decode(case: Case, key: int) -> None:
    blocks, results = len(case.sizes), []
    length = int(case.cut.bytes_at[-1])
    for kernels, judge in ((reference, widths), (native, native)):
        coarse, fine, chosen = np.full((3, blocks), 77, np.uint8)
        data, out = np.full(length, 77, np.uint8), np.full(case.size, np.nan, np.float32)
        kernels.narrow(
            case.scheme, case.size, case.classes, case.scales, case.counts, case.lanes, case.cut, coarse, fine, data,
            0, blocks,
        )  # fmt: skip
        judge.narrow_widths(case.scheme, case.size, case.classes, case.scales, coarse, case.cut, chosen, 0, blocks)
        kernels.decode_narrow(
            case.scheme, coarse, fine, chosen, data, case.cut, case.counts, case.scales, case.classes, key, out, 0,
            blocks,
        )  # fmt: skip
        results.append([coarse.tobytes(), chosen.tobytes(), fine.tobytes(), data.tobytes(), out.tobytes()])
    for mine, theirs in zip(*results, strict=True):
        assert mine == theirs


@given(CASES, st.floats(1, 12))
def test_allocate_sums(case: Case, bits: float) -> None:
    lanes = np.array([0 if spec is None else spec.lane_bits for spec in case.scheme.lattices], np.uint8)[case.classes]
    budget = int(bits * case.sizes[case.sizes >= widths.LEAST_BLOCK].sum())
    results = []
    for kernels in (widths, native):
        out = np.empty(len(case.sizes), np.uint8)
        kernels.allocate_sums(case.scales, case.size, case.scheme.log_block, lanes, budget, 200, out)
        results.append(out)
    assert (results[0] == results[1]).all()
    assert int((results[0] * case.sizes)[case.sizes >= widths.LEAST_BLOCK].sum()) <= budget


@pytest.mark.parametrize("block", [1 << 14, 1 << 20])
def test_blocks_beyond_the_caches(block: int) -> None:
    for seed, workers in ((1, 4), (2, 65536)):
        test_narrow_and_decode.hypothesis.inner_test(Case(workers, 4, 5.0, block, 1, 3 * block // 4, seed), 7)
