"""Narrow sums: unbiased, as close as predicted, of known size, the same bits whoever owns what; and not addable."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import ConfigError, Lattice, MismatchError, RoundError, average
from sumwire.codec.lattice.narrow import NarrowSum, segments_of
from sumwire.codec.lattice.parts import LatticeSum
from sumwire.kernels.lattice.narrow_tables import QUANTIZERS
from tests import ON_REFERENCE
from tests.strategies import codecs, gradients

Workers = list[NDArray[np.float32]]


def noise(workers: int, size: int, correlation: float = 0.0, seed: int = 0) -> Workers:
    rng = np.random.default_rng(seed)
    shared, own = rng.standard_normal(size), rng.standard_normal((workers, size))
    return list((np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own).astype(np.float32))


def add(codec: Lattice, xs: Workers, round_id: int = 0) -> LatticeSum:
    terms = reduce(or_, [codec.propose(x) for x in xs])
    ranks = [worker * codec.workers // len(xs) for worker in range(len(xs))]  # stratified, even if some are missing
    return codec.add([codec.encode(x, terms, rank=r, round_id=round_id) for r, x in zip(ranks, xs, strict=True)])


def narrowed(total: LatticeSum, bits: float | None = None) -> NarrowSum:
    found = total.narrow(bits)
    assert isinstance(found, NarrowSum)
    return found


def nmse(estimate: NDArray[Any], truth: NDArray[Any]) -> float:
    difference = (estimate - truth).astype(np.float64)
    return float(np.square(difference).sum() / np.square(truth.astype(np.float64)).sum())


def gaussian_sum(codec: Lattice, count: int, blocks: int = 8) -> LatticeSum:
    """Lanes as `count` payloads might add up to."""
    terms = codec.propose(np.ones(blocks * codec.block, np.float32))
    spec, top = codec.nominal_lattice, count * codec.nominal_lattice.granularity
    values = np.random.default_rng(count).normal(top / 2, top / 6, blocks * codec.block)
    lanes = np.clip(np.rint(values), 0, top).astype(f"<u{spec.lane_bytes}").view(np.uint8)
    return LatticeSum(codec, terms, 0, count, lanes, np.full(blocks, count, np.int32), 0, blocks)


@pytest.mark.skipif(ON_REFERENCE, reason="too many rounds; the reference returns the same bytes")
@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize(("workers", "bits"), [(2, 8), (8, 8), (64, 4), (1000, 3)])
def test_added_error_is_the_quantizers(width: int, workers: int, bits: int) -> None:
    """The mean of Gaussian blocks of equal energy: closed form, within 10 %."""
    codec = Lattice(workers, bits, down_bits=width, block=1024)
    xs = noise(min(workers, 16), 1 << 16, 0.3)
    total = add(codec, xs)
    if codec.sum_bits <= width:
        pytest.skip("lanes are not wider")
    exact = codec.decode(total)
    assert nmse(codec.decode(narrowed(total)), exact) == pytest.approx(QUANTIZERS[width].error, rel=0.1)


@pytest.mark.skipif(ON_REFERENCE, reason="too many rounds; the reference returns the same bytes")
@pytest.mark.parametrize(("workers", "bits", "down"), [(2, 3, 1), (4, 4, 2), (8, 3, 3.5), (16, 4, 5.125), (8, 8, 7)])
def test_unbiased_over_rounds(workers: int, bits: int, down: float) -> None:
    """Every coordinate of what narrowing adds has mean 0 over the rotations, and the projection is 1."""
    codec = Lattice(workers, bits, down_bits=down, block=256)
    xs, rounds = noise(workers, 1024, 0.5), 300
    errors, projections = [], []
    for round_id in range(rounds):
        total = add(codec, xs, round_id)
        exact, decoded = codec.decode(total).astype(np.float64), codec.decode(narrowed(total)).astype(np.float64)
        errors.append(decoded - exact)
        projections.append(decoded @ exact / (exact @ exact))
    found = np.array(errors)
    z = found.mean(axis=0) / (found.std(axis=0, ddof=1) / np.sqrt(rounds))
    assert abs(z.mean()) < 5 / np.sqrt(z.size)
    assert np.square(z).mean() == pytest.approx((rounds - 1) / (rounds - 3), abs=5 * np.sqrt(2 / z.size))
    shift = (np.mean(projections) - 1) / (np.std(projections, ddof=1) / np.sqrt(rounds))
    assert abs(shift) < 5 or abs(np.mean(projections) - 1) < 5e-4


@given(codecs(rotate=True), gradients(max_workers=4), st.floats(1, 12), st.integers(1, 9), st.booleans())
def test_the_same_bits_whoever_owns_which_part(
    codec: Lattice, xs: Workers, bits: float, shards: int, odd: bool
) -> None:
    codec = replace(codec, down_bits=bits)
    total = add(codec, xs[: codec.workers])
    terms = total.lattice_terms
    whole = narrowed(total)
    edges = codec.edges(terms, shards)
    parts = [narrowed(total.part(lo, hi)) for lo, hi in pairwise(edges)]
    assert codec.sum_sizes(terms, edges) == tuple(part.nbytes for part in parts)
    assert tuple(part.packed().tobytes() for part in parts) == tuple(
        whole.part(lo, hi).packed().tobytes() for lo, hi in pairwise(edges)
    )
    read = codec.read_sum(
        terms, list(zip(pairwise(edges), [p.packed() for p in parts], strict=True)), count=total.count, round_id=0
    )
    joined = codec.side_by_side(parts[::-1] if odd else parts)
    mean = codec.decode(whole)
    assert np.isfinite(mean).all()
    for other in (read, joined):
        assert codec.decode(other).tobytes() == mean.tobytes()
    spans = [span for shard in range(shards) for span in codec.parts(terms.size, shard, shards)]
    assert codec.decode(codec.side_by_side([total.part(*span).narrow() for span in spans])).tobytes() == mean.tobytes()


@given(codecs(rotate=True), gradients(max_workers=4), st.floats(1, 40))
def test_budget_zero_blocks_and_tails(codec: Lattice, xs: Workers, bits: float) -> None:
    codec = replace(codec, down_bits=min(bits, 32))
    total = add(codec, xs[: codec.workers])
    terms, found = total.lattice_terms, narrowed(total)
    exact, decoded = codec.decode(total), codec.decode(found)
    small = terms.sizes < 64
    lanes = terms.layout(codec).lane_bits.astype(int)
    budget = min(bits, 32) * terms.sizes[~small].sum() + (terms.sizes * lanes)[small].sum()
    segments = segments_of(terms, codec)
    assert 8 * found.nbytes <= budget + 16 * len(terms.sizes) + 8 * (len(segments.edges) - 1)
    starts = np.concatenate([[0], np.cumsum(terms.sizes)])
    for block, (a, b) in enumerate(pairwise(starts)):
        if not exact[a:b].any() or small[block] or bits >= 32:
            assert (exact[a:b] == decoded[a:b]).all()


@pytest.mark.parametrize("workers", [1, 2, 3, 17, 200, 1000, 5000, 65536])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_every_lane_width(workers: int, bits: int) -> None:
    """From a lane of one bit to one of 24, with one payload in it or as many as it holds."""
    codec = Lattice(workers, bits, block=512)
    for count in {1, workers}:
        total = gaussian_sum(codec, count)
        exact = codec.decode(total)
        for down in (1, 3, 5, 6, 8):
            found = narrowed(total, down)
            assert found.count == count
            error = nmse(codec.decode(found), exact)
            if codec.sum_bits <= down:
                assert error == 0
            continuous = count * codec.nominal_lattice.granularity > 10 * 2**down
            if codec.sum_bits > down and continuous:
                assert error == pytest.approx(QUANTIZERS[down].error, rel=0.15)
            # `fine` is coarser far from Gaussian blocks.
            assert codec.decode(found) @ exact / (exact @ exact) == pytest.approx(1, abs=0.005 if continuous else 0.02)


@pytest.mark.parametrize(("bits", "rotation"), [(4, 16), (8, 32)])
def test_both_rotations(bits: int, rotation: int) -> None:
    codec = Lattice(8, bits, down_bits=5, block=4096)
    assert codec.nominal_lattice.rotation_bits == rotation
    total = add(codec, noise(8, 1 << 16))
    assert nmse(codec.decode(narrowed(total)), codec.decode(total)) == pytest.approx(QUANTIZERS[5].error, rel=0.1)


def test_counts_that_differ_between_blocks() -> None:
    codec = Lattice(4, 4, down_bits=6, block=256)
    xs = noise(4, 16 * 256 * 5 + 100)
    terms = reduce(or_, [codec.propose(x) for x in xs])
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    lost = [payloads[0], payloads[1].part(0, 30), payloads[2].part(20, 50), payloads[3].part(7, 60)]
    total = codec.add(lost)
    assert {2, 3, 4} <= set(total.counts.tolist())
    found = narrowed(total)
    assert (found.counts == total.counts).all()
    for divide_by in ("count", "workers"):
        exact = codec.decode(total, divide_by=divide_by)
        assert nmse(codec.decode(found, divide_by=divide_by), exact) < 1.3 * QUANTIZERS[6].error


def test_missing_parts() -> None:
    codec = Lattice(2, 4, down_bits=4)
    xs = noise(2, 40 * 512)
    part = narrowed(add(codec, xs).part(0, 16))
    with pytest.raises(RoundError, match="nothing arrived of 24 of 40 blocks"):
        codec.decode(part)
    out = np.full(40 * 512, 7, np.float32)
    codec.decode(part, out=out, missing="zero")
    assert out[: 16 * 512].any()
    assert not out[16 * 512 :].any()


def test_a_narrow_sum_cannot_be_added() -> None:
    codec = Lattice(4, 4, down_bits=4)
    x = noise(1, 1000)[0]
    payload = codec.encode(x, codec.propose(x), rank=0)
    found = narrowed(codec.add([payload]))
    for operation in (lambda: found + payload, lambda: payload + found, lambda: codec.add([payload, found])):
        with pytest.raises(
            MismatchError, match="NarrowSum cannot be added, as it was quantized again: first add, then narrow"
        ):
            operation()
    assert found.narrow() is found


def test_whole_segments_only() -> None:
    codec = Lattice(4, 4, down_bits=4)
    total = add(codec, noise(2, 100 * 512))
    for lo, hi in ((1, 100), (0, 20), (16, 33)):
        with pytest.raises(ConfigError, match="not whole segments of 16 blocks"):
            total.part(lo, hi).narrow()
        with pytest.raises(ConfigError, match="not whole segments of 16 blocks"):
            narrowed(total).part(lo, hi)


def test_options() -> None:
    exact = Lattice(4, down_bits="exact")
    assert Lattice(4).down_bits == Lattice(4, 3, family_bits=4).down_bits == Lattice(64, 4).down_bits == 5.125
    assert Lattice(4, down_bits=5).family == Lattice(4).family == exact.family
    assert Lattice(4, down_bits=5).for_plain_sums() == exact
    # Where nothing can be narrowed, or somebody has decided on lanes.
    for codec in (Lattice(1), Lattice(4, rotate=False), Lattice(4, lane_bits=9), Lattice(4, feedback=True)):
        assert codec.down_bits == "exact"
    assert Lattice.thc(4).down_bits == Lattice.uniform(4).down_bits == "exact"
    assert Lattice(4, feedback=True, total_bits=12).down_bits == "exact"
    total = add(exact, noise(2, 600))
    assert total.narrow() is total
    for bits in (0.5, 33, "few", True):
        with pytest.raises(ConfigError, match="down_bits"):
            Lattice(4, down_bits=bits)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rotate=True"):
        Lattice(4, down_bits=5, rotate=False)
    with pytest.raises(ConfigError, match="give down_bits or total_bits, not both"):
        Lattice(4, down_bits=5, total_bits=10)
    up, down, terms = Lattice(64, 4, down_bits=5.125).expected_bits(512_000)
    assert (up + down) / 512_000 == 4 + 5.125 + 16 / 512
    assert terms == 8 * 1000 + 16


def test_spikes_and_cancelling_workers_stay_unbiased() -> None:
    """Sums whose lanes are nearly all 0: as far from Gaussian as they get."""
    codec = Lattice(2, 4, down_bits=6, block=512)
    x = noise(1, 32 * 512)[0]
    y = -x
    y[::1000] += 0.5
    projections = []
    for round_id in range(40):
        total = add(codec, [x, y], round_id)
        exact, decoded = codec.decode(total), codec.decode(narrowed(total))
        projections.append(decoded @ exact / (exact @ exact))
    assert np.mean(projections) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("down", range(1, 9))
@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_lanes_that_are_mostly_zero_stay_unbiased(down: int, share: float) -> None:
    codec, rng = Lattice(8, 4, block=512), np.random.default_rng(0)
    total = gaussian_sum(codec, 8, 64)
    lanes = total.lanes.view(f"<u{codec.nominal_lattice.lane_bytes}").copy()
    lanes[rng.random(len(lanes)) > share] = 4 * codec.nominal_lattice.granularity
    total = replace(total, lanes=lanes.view(np.uint8))
    exact = codec.decode(total)
    assert codec.decode(narrowed(total, down)) @ exact / (exact @ exact) == pytest.approx(1, abs=0.02)


@pytest.mark.skipif(ON_REFERENCE, reason="too many rounds; the reference returns the same bytes")
@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize(("bits", "down"), [(4, 4), (4, 5), (4, 5.125), (5, 5), (6, 6), (8, 8), (4, 7.5)])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_error_of_both_ways_is_as_predicted(workers: int, bits: int, down: float, correlation: float) -> None:
    codec = Lattice(workers, bits, down_bits=down)
    xs = noise(workers, 1 << 18, correlation, seed=bits)
    measured = nmse(average(codec, xs), np.mean(xs, axis=0))
    assert measured == pytest.approx(codec.predicted_nmse(correlation=correlation), rel=0.1)


def test_prediction_of_lanes() -> None:
    for bits in (Lattice(4).sum_bits, 32, "exact"):
        assert Lattice(4, down_bits=bits).predicted_nmse() == Lattice(4, down_bits="exact").predicted_nmse()
