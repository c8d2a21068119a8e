"""A complete round in one call, and the addable form of a scheme."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sumwire import ConfigError, InputError, Lattice, MismatchError, NonFiniteError, Sparse
from sumwire.dme import (
    Correlated,
    Drive,
    Eden,
    MeanScheme,
    Rotated,
    Sampled,
    StochasticLevels,
    VariableLength,
    estimate,
)
from tests.dme import every_scheme, round_trip, vector


@every_scheme
def test_estimate_is_the_average_of_the_decodes(scheme: MeanScheme) -> None:
    xs = [vector("gaussian", 60, seed).reshape(4, 15) for seed in range(5)]
    decoded = [round_trip(scheme, x, rank=rank, round_id=7) for rank, x in enumerate(xs)]
    mean_ = estimate(scheme, iter(xs), round_id=7)
    assert mean_.dtype == np.float32
    assert mean_.shape == (4, 15)
    np.testing.assert_allclose(mean_, np.mean(decoded, axis=0, dtype=np.float64), rtol=1e-6, atol=1e-7)
    if scheme not in (Drive(), VariableLength()):
        assert not np.array_equal(estimate(scheme, xs, round_id=8), mean_)


def test_estimate_with_codecs() -> None:
    xs = [vector("gaussian", 500, seed).reshape(5, 100) for seed in range(4)]
    truth = np.mean(xs, axis=0, dtype=np.float64)
    for codec in (Rotated(256).lattice(4), StochasticLevels(256).lattice(4), Lattice(4, 8)):
        for inputs in (xs, [x.astype(np.float64) for x in xs]):
            got = estimate(codec, inputs, round_id=3)
            assert got.dtype == np.float32
            assert np.abs(got - truth).max() < 0.05
    assert np.allclose(estimate(Sparse(workers=4), xs), truth, atol=1e-6)


def test_estimate_of_other_tensors() -> None:
    torch = pytest.importorskip("torch")
    xs = [torch.from_numpy(vector("gaussian", 50, seed)) for seed in range(3)]
    assert np.array_equal(estimate(Rotated(16), xs), estimate(Rotated(16), [x.numpy() for x in xs]))
    assert estimate(Rotated(16), [np.float32(3), np.float32(5)]) == pytest.approx(4)
    assert estimate(Rotated(16), [np.empty((0, 3))] * 2).shape == (0, 3)


def test_estimate_refuses() -> None:
    x = np.ones(4, np.float32)
    for scheme in (Rotated(4), Lattice(2, 4)):
        with pytest.raises(ConfigError, match="at least one vector"):
            estimate(scheme, [])
        with pytest.raises(MismatchError, match="differ in shape"):
            estimate(scheme, [x, np.ones(5, np.float32)])
        with pytest.raises(MismatchError, match=r"differ in shape \(\[\(2, 2\), \(4,\)\]\)"):
            estimate(scheme, [x, x.reshape(2, 2)])
        with pytest.raises(ConfigError, match="round_id"):
            estimate(scheme, [x], round_id=-1)
    for other in (None, "rotated", Rotated):
        with pytest.raises(InputError, match="takes a mean scheme or a codec"):
            estimate(other, [x])
    with pytest.raises(NonFiniteError):
        estimate(Rotated(4), [x, x * np.float32(np.nan)])


# The addable form


@pytest.mark.parametrize("scheme", [StochasticLevels(16), Rotated(4, block=256, seed=3), Correlated(256)], ids=repr)
def test_lattice_is_a_codec_whose_payloads_add(scheme: Any) -> None:
    xs = [vector("gaussian", 700, seed) for seed in range(4)]
    codec = scheme.lattice(4)
    assert isinstance(codec, Lattice)
    assert 1 << codec.bits == scheme.k
    assert (codec.workers, codec.seed, codec.table) == (4, scheme.seed, "uniform")
    assert codec.rotate == isinstance(scheme, Rotated)
    assert codec.rounding == ("stratified" if isinstance(scheme, Correlated) else "independent")
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    total = payloads[0]
    for payload in payloads[1:]:
        total = total + payload
    each = np.mean([codec.decode(payload) for payload in payloads], axis=0, dtype=np.float64)
    np.testing.assert_allclose(codec.decode(total), each, atol=1e-5)
    truth = np.mean(xs, axis=0, dtype=np.float64)
    step = 2 * np.abs(xs).max() / (scheme.k - 1) if not codec.rotate else 4.0
    assert np.square(codec.decode(total) - truth).mean() < step**2 / 4
    assert scheme.lattice(4, seed=99).seed == 99


def test_lattice_has_k_evenly_spaced_levels() -> None:
    """Without a rotation, a block of one worker decodes to k values that reach its largest magnitude."""
    codec = StochasticLevels(8).lattice(1)
    x = np.random.default_rng(0).uniform(-1, 1, codec.block).astype(np.float32)
    seen = np.unique(codec.decode(codec.encode(x, codec.propose(x), rank=0)))
    peak = np.abs(x).max()
    np.testing.assert_allclose(seen, np.linspace(-peak, peak, 8), rtol=1e-5)


@pytest.mark.parametrize(
    "scheme", [StochasticLevels(3), Rotated(5), Correlated(512), StochasticLevels(65536)], ids=repr
)
def test_lattice_refuses_other_numbers_of_levels(scheme: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"k={scheme.k} is not a number of levels of a lattice: use 2, 4, 8, ... or 256"
    ):
        scheme.lattice(4)


@pytest.mark.parametrize("scheme", [VariableLength(16), Drive(), Eden(2), Sampled(Rotated(4), 0.5)], ids=repr)
def test_what_has_no_addable_form_says_so(scheme: MeanScheme) -> None:
    with pytest.raises(ConfigError, match="has no addable form"):
        scheme.lattice(4)
