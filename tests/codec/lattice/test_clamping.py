"""Clamping leaves no bias: projected onto the exact mean, the estimate has length 1, whatever the workers' scales.

Statistics with fixed seeds. Standard errors are about 0.0006 at 1 bit with unequal scales, at most 0.0005 elsewhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import Lattice
from sumwire.codec.lattice import clamping
from tests import ON_REFERENCE

Workers = list[NDArray[np.float32]]
EQUAL, UNEQUAL = (1.0,), (1.0, 1 / 1.5, 1 / 3, 1 / 10)


def gaussians(workers: int, size: int, scales: Sequence[float], rng: np.random.Generator) -> Workers:
    """Tensors of correlation 0.5."""
    common = rng.standard_normal(size, dtype=np.float32)
    factors = [np.float32(scales[k % len(scales)] * math.sqrt(0.5)) for k in range(workers)]
    return [factor * (common + rng.standard_normal(size, dtype=np.float32)) for factor in factors]


def projection(codec: Lattice, draw: Callable[[np.random.Generator], Workers], rounds: int) -> float:
    """<estimate, mean> / <mean, mean>, over all rounds."""
    rng, along, power = np.random.default_rng(codec.bits), 0.0, 0.0
    for r in range(rounds):
        xs = draw(rng)
        terms = reduce(or_, (codec.propose(x) for x in xs))
        total = codec.add([codec.encode(x, terms, rank=rank, round_id=r) for rank, x in enumerate(xs)])
        mean = np.mean(xs, axis=0, dtype="f8")
        along += float(codec.decode(total).astype("f8") @ mean)
        power += float(mean @ mean)
    return along / power


@pytest.mark.skipif(ON_REFERENCE, reason="too many rounds; the reference returns the same bytes")
@pytest.mark.parametrize("scales", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("workers", [2, 4, 8, 64])
@pytest.mark.parametrize("bits", range(1, 9))
def test_the_mean_does_not_shrink(bits: int, workers: int, scales: tuple[float, ...]) -> None:
    size = (1 << {1: 21, 2: 20}.get(bits, 18)) // workers
    codec = Lattice(workers, bits, widths="fixed")
    assert projection(codec, lambda rng: gaussians(workers, size, scales, rng), 8) == pytest.approx(1, abs=0.002)


@pytest.mark.skipif(ON_REFERENCE, reason="too many rounds; the reference returns the same bytes")
@pytest.mark.parametrize(("bits", "least"), [(1, 0.6), (2, 0.9), (3, 0.97)])
def test_without_the_correction_it_does(bits: int, least: float) -> None:
    codec = Lattice(4, bits, widths="fixed", unbiased=False)
    assert least < projection(codec, lambda rng: gaussians(4, 1 << 17, EQUAL, rng), 2) < 1 - 0.01


def spikes(workers: int, count: int, rng: np.random.Generator) -> Workers:
    """`count` large coordinates in each of 256 blocks, elsewhere for each worker."""
    blocks = np.zeros((workers, 256, 512), np.float32)
    for worker in blocks:
        for block in worker:
            block[rng.choice(512, count, replace=False)] = 3 + rng.standard_normal(count)
    return list(blocks.reshape(workers, -1))


@pytest.mark.skipif(ON_REFERENCE, reason="too many rounds; the reference returns the same bytes")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("bits", "tolerance"), [(1, 0.02), (2, 0.005), (3, 0.002), (4, 0.002)])
def test_blocks_of_few_large_coordinates(bits: int, tolerance: float, count: int) -> None:
    """Rotated, they are far from Gaussian: the correction is found on the block itself."""
    found = projection(Lattice(4, bits, widths="fixed"), lambda rng: spikes(4, count, rng), 3)
    assert found == pytest.approx(1, abs=tolerance)


@pytest.mark.skipif(ON_REFERENCE, reason="too many rounds; the reference returns the same bytes")
@pytest.mark.parametrize("size", [1, 8, 64 + 32 + 4])
def test_small_blocks(size: int) -> None:
    found = projection(Lattice(4, 3, widths="fixed"), lambda rng: gaussians(4, size, UNEQUAL, rng), 2000)
    assert found == pytest.approx(1, abs=0.01)


@given(st.floats(0.6, 5.0), st.floats(1.0, 20.0))
def test_a_quieter_block_is_multiplied_by_what_makes_it_shrink_as_much(clip: float, ratio: float) -> None:
    wider = clamping.effective_range(clip, ratio)
    c = clamping.inside(clip) / clamping.inside(wider)
    assert clamping.inside(clip) <= c <= 1
    assert wider == pytest.approx(clip * ratio / c, rel=1e-9)
    assert c * clamping.inside(clip * ratio / c) == pytest.approx(clamping.inside(clip), rel=1e-9)
    assert clamping.nominal_range(wider, ratio) == pytest.approx(clip, rel=1e-6)


def test_where_nothing_is_corrected() -> None:
    for codec in (Lattice.thc(4), Lattice.uniform(4), Lattice(4, feedback=True), Lattice(4, rotate=False)):
        assert not codec.corrects
        assert all(spec is None or (spec.shrink == 1 and not any(spec.corrections)) for spec in codec.scheme.lattices)
    assert Lattice(4).corrects
    assert Lattice.thc(4, unbiased=True).corrects
    assert Lattice(4).family != Lattice(4, unbiased=False).family
    assert Lattice(4, feedback=True).family == Lattice(4, feedback=True, unbiased=False).family


GOLDEN = {
    "thc": "a16530db10a82872",
    "thc-512": "dd9baf46b1fb1d65",
    "thc-8-bits": "559d9d5d124a6170",
    "uniform": "f960b3ac7f612997",
    "uniform-512": "4adfa445db4b5150",
    "feedback": "46a615470753d387",
    "not-rotated": "5a918c57965b994b",
    "biased": "919df2b178037bfd",
    "biased-8-bits": "d359d4bf0afe2b10",
}


def digest(codec: Lattice) -> str:
    """Of three workers' payloads and their mean."""
    rng = np.random.default_rng(3)
    xs = [(rng.standard_normal(7000) * np.exp(rng.standard_normal(70)).repeat(100)).astype("f4") for _ in range(3)]
    terms = reduce(or_, (codec.propose(x) for x in xs))
    payloads = [codec.encode(x, terms, rank=rank, round_id=9) for rank, x in enumerate(xs)]
    data = b"".join(payload.data.tobytes() for payload in payloads)
    return hashlib.blake2b(data + codec.decode(codec.add(payloads)).tobytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_of_other_settings_are_those_before_the_correction(name: str) -> None:
    codec = {
        "thc": Lattice.thc(3),
        "thc-512": Lattice.thc(3, block=512),
        "thc-8-bits": Lattice.thc(3, 8),
        "uniform": Lattice.uniform(3),
        "uniform-512": Lattice.uniform(3, 3, block=512),
        "feedback": Lattice(3, 3, feedback=True, terms="exact"),
        "not-rotated": Lattice(3, rotate=False),
        "biased": Lattice(3, unbiased=False, terms="exact"),
        "biased-8-bits": Lattice(3, 8, unbiased=False, terms="exact"),
    }[name]
    assert digest(codec) == GOLDEN[name]
