"""Triton's interpreter returns the reference's bytes for every Lattice kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire import Lattice
from sumwire.codec.lattice.narrow import segments_of
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.kernels.lattice import narrowing, reference
from sumwire.kernels.lattice.lanes import lane_bytes
from sumwire.kernels.lattice.scheme import Keys
from tests.gpu.cases import BOTH, KEYS, Case, held, same

pytest.importorskip("triton", reason='Triton is not installed: pip install ".[gpu]"')
kernels = pytest.importorskip("sumwire.kernels.triton.lattice")

FEW = settings(settings.get_profile("interpreter"))


@BOTH
@FEW
@given(st.data())
def test_measure(sizes: Any, data: st.DataObject) -> None:
    case = data.draw(sizes())
    expected, found = np.empty(case.blocks, np.float32), np.empty(case.blocks, np.float32)
    reference.measure(case.x, case.scheme, expected, 0, case.blocks)
    kernels.measure(case.tensor, case.scheme, found, 0, case.blocks)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_measure_shows_what_is_not_finite(rotate: bool, value: float) -> None:
    x, found = torch.ones(140), np.zeros(4, np.float32)
    x[70] = value
    kernels.measure(x, Lattice(2, block=64, rotate=rotate).scheme, found, 0, 4)
    assert np.isfinite(found).tolist() == [True, False, True, True]


@BOTH
@FEW
@given(st.data(), KEYS, st.sampled_from([None, "other", "in place"]))
def test_encode(sizes: Any, data: st.DataObject, keys: Keys, residual: str | None) -> None:
    case = data.draw(sizes())
    if residual == "in place" and case.x.dtype != np.float32:
        residual = "other"
    x, tensor = case.x.copy(), case.tensor.clone()
    left = {None: None, "other": np.zeros(case.size, np.float32), "in place": x}[residual]
    mine = {None: None, "other": torch.zeros(case.size), "in place": tensor}[residual]
    out, found = np.empty(case.payload_bytes, np.uint8), torch.zeros(case.payload_bytes, dtype=torch.uint8)
    terms = case.scales, case.classes, case.widths, keys
    assert reference.encode(case.scheme, x, *terms, out, left, 0, case.blocks) == -1
    assert kernels.encode(case.scheme, tensor, *terms, found, mine, 0, case.blocks) == -1
    assert same(found, out)
    if left is not None:
        assert same(mine, left)


@pytest.mark.parametrize("block", [64, 4096])
@pytest.mark.parametrize("rotate", [True, False])
def test_encode_names_the_first_block_beyond_its_terms(block: int, rotate: bool) -> None:
    codec = Lattice(2, 4, block=block, rotate=rotate)
    case = Case(codec, 13, 3, "float32", 0, 1)
    case.scales[[2, 4]] *= np.float32(0.01)
    terms = case.scales, case.classes, case.widths, Keys(1, 2, 3, 4)
    out, found = np.empty(case.payload_bytes, np.uint8), torch.zeros(case.payload_bytes, dtype=torch.uint8)
    expected = reference.encode(case.scheme, case.x, *terms, out, None, 0, case.blocks)
    assert expected == 2
    assert kernels.encode(case.scheme, case.tensor, *terms, found, None, 0, case.blocks) == expected
    assert kernels.encode(case.scheme, case.tensor, *terms, found, None, 3, case.blocks) == 4


@pytest.mark.parametrize("block", [64, 4096])
def test_a_part_of_a_tensor_has_the_bytes_of_the_whole(block: int) -> None:
    case = Case(Lattice(2, 4, block=block), 13, 3, "float32", 0, 5)
    whole, keys = case.payload(Keys(1, 2, 3, 4)), Keys(1, 2, 3, 4)
    begin = int((case.sizes * case.widths)[:2].sum()) // 8
    part = torch.zeros(len(whole) - begin, dtype=torch.uint8)
    kernels.encode(case.scheme, case.tensor, case.scales, case.classes, case.widths, keys, part, None, 2, case.blocks)
    assert same(part, whole[begin:])
    expected, found = np.zeros(case.size, np.float32), torch.zeros(case.size)
    lanes = case.lanes(keys)
    mean = case.counts, case.scales, case.classes, keys.sign
    at = int(lane_bytes(case.scheme, case.sizes, case.classes)[:2].sum())
    reference.decode(case.scheme, lanes[at:], *mean, expected, 2, case.blocks)
    kernels.decode(case.scheme, held(lanes[at:]), *mean, found, 2, case.blocks)
    assert same(found, expected)


def test_a_block_of_few_large_coordinates_is_corrected_in_the_reference_s_order() -> None:
    """By Newton's method, whose sums in float64 depend on the order."""
    case = Case(Lattice(2, 4, block=4096), 2048, 2, "float32", 0, 1)
    case.x[:], keys = 1e-3, Keys(1, 2, 3, 4)
    case.x[[5, 700, 4096 + 3, 8192 + 9]] = 1.0, -2.0, 3.0, 0.5
    reference.measure(case.x, case.scheme, case.scales, 0, case.blocks)
    case.classes[:] = case.widths[:] = (4, 5, 4)
    out = np.empty(int((case.sizes * case.widths).sum()) // 8, np.uint8)
    left, mine = np.zeros(case.size, np.float32), torch.zeros(case.size)
    found = torch.zeros(len(out), dtype=torch.uint8)
    terms = case.scales, case.classes, case.widths, keys
    assert reference.encode(case.scheme, case.x, *terms, out, left, 0, case.blocks) == -1
    assert kernels.encode(case.scheme, held(case.x), *terms, found, mine, 0, case.blocks) == -1
    assert same(found, out)
    assert same(mine, left)


@BOTH
@FEW
@given(st.data(), KEYS, KEYS, st.booleans())
def test_add(sizes: Any, data: st.DataObject, first: Keys, second: Keys, fresh: bool) -> None:
    case = data.draw(sizes())
    parts = [(case.payload(keys), case.widths) for keys in (first, second)]
    lanes = case.lanes(first) if case.codec.headroom > 2 else np.zeros(case.lane_bytes, np.uint8)
    found = held(lanes)
    reference.add(case.scheme, case.size, case.classes, lanes, parts, fresh, 0, case.blocks)
    tensors = [(held(payload), widths) for payload, widths in parts]
    kernels.add(case.scheme, case.size, case.classes, found, tensors, fresh, 0, case.blocks)
    assert same(found, lanes)


@BOTH
@FEW
@given(st.data(), KEYS)
def test_add_lanes_and_pack(sizes: Any, data: st.DataObject, keys: Keys) -> None:
    case = data.draw(sizes())
    one = case.lanes(keys)
    lanes, found = one.copy(), held(one)
    reference.add_lanes(case.scheme, case.size, case.classes, lanes, one, 0, case.blocks)
    kernels.add_lanes(case.scheme, case.size, case.classes, found, held(one), 0, case.blocks)
    assert same(found, lanes)
    packed, mine = np.empty(case.packed_bytes, np.uint8), torch.zeros(case.packed_bytes, dtype=torch.uint8)
    reference.pack_lanes(case.scheme, case.size, case.classes, lanes, packed, 0, case.blocks)
    kernels.pack_lanes(case.scheme, case.size, case.classes, found, mine, 0, case.blocks)
    assert same(mine, packed)
    kernels.unpack_lanes(case.scheme, case.size, case.classes, mine, found.zero_(), 0, case.blocks)
    assert same(found, lanes)


@BOTH
@FEW
@given(st.data(), KEYS, KEYS)
def test_decode(sizes: Any, data: st.DataObject, first: Keys, second: Keys) -> None:
    case = data.draw(sizes())
    lanes, counts = case.lanes(first, second), case.counts
    counts[:1] = 0
    expected, found = np.empty(case.size, np.float32), torch.full((case.size,), np.nan)
    mean = counts, case.scales, case.classes, first.sign
    reference.decode(case.scheme, lanes, *mean, expected, 0, case.blocks)
    kernels.decode(case.scheme, held(lanes), *mean, found, 0, case.blocks)
    assert same(found, expected)
    packed = np.empty(case.packed_bytes, np.uint8)
    reference.pack_lanes(case.scheme, case.size, case.classes, lanes, packed, 0, case.blocks)
    kernels.decode_packed(case.scheme, held(packed), *mean, found.fill_(np.nan), 0, case.blocks)
    assert same(found, expected)


@BOTH
@FEW
@given(
    st.data(),
    KEYS,
    KEYS,
    st.sampled_from([1.0, 2.5, 5.125, 7.5]),
)
def test_narrow(sizes: Any, data: st.DataObject, first: Keys, second: Keys, bits: float) -> None:
    case = data.draw(sizes(rotate=True))
    codec = Lattice(case.codec.workers, case.codec.bits, block=case.codec.block, down_bits=bits)
    terms = LatticeTerms(codec, (case.size,), case.scales)
    case.classes, case.widths = terms.layout(codec).classes, terms.layout(codec).widths
    case.lane_bytes = int(terms.layout(codec).lanes_at[-1])
    case.scheme, case.payload_bytes = codec.scheme, terms.layout(codec).payload_bytes
    lanes, segments = case.lanes(first, second), segments_of(terms, codec)
    counts = case.counts
    counts[:1] = 1
    sizes = case.blocks, case.blocks, int(segments.bytes_at[-1])
    expected, found = [[np.full(size, 9, np.uint8) for size in sizes] for _ in range(2)]
    mine = [held(array) for array in found]
    what = codec.scheme, case.size, case.classes, case.scales, counts
    narrowing.narrow(*what, lanes, segments, *expected, 0, case.blocks)
    kernels.narrow(*what, held(lanes), segments, *mine, 0, case.blocks)
    assert all(map(same, mine, expected))
    widths = np.empty(case.blocks, np.uint8)
    narrowing.narrow_widths(*what[:4], expected[0], segments, widths, 0, case.blocks)
    means = np.empty(case.size, np.float32), torch.full((case.size,), np.nan)
    rest = segments, counts, case.scales, case.classes, first.sign
    narrowing.decode_narrow(codec.scheme, *expected[:2], widths, expected[2], *rest, means[0], 0, case.blocks)
    kernels.decode_narrow(codec.scheme, *mine[:2], widths, mine[2], *rest, means[1], 0, case.blocks)
    assert same(means[1], means[0])
