"""Terms of one byte per block: they join as floats do, cover what they must, and cost no accuracy."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from sumwire import ConfigError, Lattice, NonFiniteError, RangeError, Residual, Sparse
from sumwire.codec.adaptive import Adaptive
from sumwire.codec.base import Codec
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.codec.stacked import Stacked
from sumwire.wire.frame import parse, to_bytes
from tests import ON_REFERENCE

Floats = NDArray[np.float32]

CODEC = Lattice(3, 4, block=64)
SCALES = hnp.arrays(
    np.float32,
    (3, 6),
    elements=st.one_of(
        st.sampled_from([0.0, 2.0**-149, 2.0**-126, 1.0, 2.0**31, 2.0**32, 2.0**115]),
        st.floats(0, 2.0**115, width=32),
        st.floats(0.5, 2, width=32),
    ),
)


def tensor(scales: Floats) -> Floats:
    """Blocks of these scales."""
    return scales.repeat(64)


@given(SCALES)
def test_joining_far_scales_depends_on_no_order(scales: Floats) -> None:
    a, b, c = (CODEC.propose(tensor(row)) for row in scales)
    assert a | a == a
    assert a | b == b | a
    assert (a | b) | c == a | (b | c) == (c | a) | b
    assert a | (a | b) == a | b
    at_once = a.with_words(np.max([each.words for each in (a, b, c)], axis=0))
    assert at_once == a | b | c
    assert parse(to_bytes(at_once)).terms(CODEC, a.shape) == at_once


@given(SCALES)
def test_joined_terms_cover_all(scales: Floats) -> None:
    xs = [tensor(row) for row in scales]
    terms = reduce(or_, map(CODEC.propose, xs))
    assert isinstance(terms, LatticeTerms)
    assert (terms.scales >= scales.max(axis=0)).all()
    assert ((terms.scales == 0) == (scales.max(axis=0) == 0)).all()
    for rank, x in enumerate(xs):
        CODEC.encode(x, terms, rank=rank)


CODECS: dict[str, tuple[Codec, tuple[int, ...]]] = {
    "lattice": (CODEC, (384,)),
    "adaptive": (Adaptive(CODEC, Sparse(3)), (384,)),
    "stacked": (Stacked(CODEC, 2), (2, 192)),
}


@pytest.mark.parametrize("name", CODECS)
@given(scales=SCALES)
def test_codes_join_as_words_do(name: str, scales: Floats) -> None:
    codec, shape = CODECS[name]
    proposed = [codec.propose(tensor(row).reshape(shape)) for row in scales]
    expected = reduce(or_, proposed)
    all_bases = [terms.bases for terms in proposed]
    bases = np.max([each for each in all_bases if each is not None], axis=0)
    codes = np.max([terms.codes(bases) for terms in proposed], axis=0)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(proposed[0].with_codes(bases, codes).words, expected.words)
    own = expected.bases
    assert own is not None
    np.testing.assert_array_equal(expected.with_codes(own, expected.codes(own)).words, expected.words)


def test_a_refusal_wins() -> None:
    terms, refused = CODEC.propose(np.ones(384, np.float32)), CODEC.refuse((384,))
    assert terms.bases is not None
    assert refused.bases is not None
    bases = np.maximum(terms.bases, refused.bases)
    codes = np.maximum(terms.codes(bases), refused.codes(bases))
    assert not terms.with_codes(bases, codes).encodable
    assert not terms.with_words(np.maximum(terms.words, refused.words)).encodable
    assert refused.nbytes == refused.memory == 0


def test_which_codecs_have_which() -> None:
    assert CODEC.terms == Lattice(4, feedback=True).terms == "byte"
    for codec in (Lattice.thc(4), Lattice.uniform(4), Lattice(4, rotate=False), Lattice(4, terms="exact")):
        assert codec.terms == "exact"
        terms = codec.propose(np.full(700, 1.03, np.float32))
        assert terms.bases is None
        assert terms.nbytes == 4 * len(terms.scales)
        assert (terms.scales < 1.0301).all()
    terms = CODEC.propose(np.full(700, 1.03, np.float32))
    assert terms.nbytes == 2 + len(terms.scales)
    assert CODEC.expected_bits(6400)[2] == 8 * CODEC.propose(np.ones(6400, np.float32)).nbytes
    with pytest.raises(ConfigError, match="terms="):
        Lattice(4, terms="short")  # type: ignore[arg-type]


@pytest.mark.parametrize(("bad", "error"), [(np.nan, NonFiniteError), (np.inf, NonFiniteError), (2.0**116, RangeError)])
def test_no_code_stands_for_what_cannot_be_encoded(bad: float, error: type[Exception]) -> None:
    x = np.ones(384, np.float32)
    x[100:164] = bad
    with pytest.raises(error):
        CODEC.propose(x)


def test_capped_terms_stay_below_the_cap_and_hold_what_fits() -> None:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(6400).astype("f4") * scale for scale in (1.0, 1.3, 50.0)]
    proposals = [CODEC.propose(x) for x in xs]
    for cap in (1.0, 2.7, 4.0):
        terms = LatticeTerms.join_capped(proposals, cap)
        assert (terms.scales <= proposals[1].scales * cap).all()
        assert (terms.scales * 1.0906 >= np.minimum(proposals[2].scales, proposals[1].scales * cap)).all()
        assert parse(to_bytes(terms)).terms(CODEC, (6400,)).scales.tobytes() == terms.scales.tobytes()
        fitted = CODEC.fit(xs[2], terms)
        own = replace(CODEC, terms="exact").propose(fitted)
        assert (own.scales <= terms.scales).all()
        np.testing.assert_allclose(own.scales, terms.scales, rtol=1e-5)
        payload = CODEC.encode(xs[2], terms, rank=2)
        assert payload.data.tobytes() == CODEC.encode(fitted, terms.as_capped(), rank=2).data.tobytes()


def test_a_residual_keeps_what_capped_terms_do_not_take() -> None:
    codec = Lattice(2, 3, block=64, feedback=True)
    x = np.random.default_rng(1).standard_normal(1000).astype("f4")
    memory = Residual(codec)
    proposals = [codec.propose(x / 20), codec.propose(memory.correct(x))]
    payload = memory.encode(LatticeTerms.join_capped(proposals, 2.0), rank=1)
    np.testing.assert_allclose(codec.decode(payload) + memory.value, x, atol=1e-5)


def error(codec: Lattice, correlation: float, rounds: int = 8, size: int = 1 << 15) -> float:
    """NMSE of the mean, over tensors whose scales lie evenly between two that a byte can hold."""
    total = power = 0.0
    for round_id in range(rounds):
        rng = np.random.default_rng((round_id, codec.workers))
        common, gain = rng.standard_normal(size), 2.0 ** ((round_id + 0.5) / rounds / 8)
        xs = []
        for _ in range(codec.workers):
            own = rng.standard_normal(size)
            xs.append((gain * (np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own)).astype("f4"))
        terms = reduce(or_, map(codec.propose, xs))
        payloads = [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]
        mean = np.mean(xs, axis=0, dtype=np.float64)
        total += float(np.square(codec.decode(codec.add(payloads)) - mean).sum()) / gain**2
        power += float(np.square(mean).sum()) / gain**2
    return total / power


@pytest.mark.skipif(ON_REFERENCE, reason="too many rounds; the reference returns the same bytes")
@pytest.mark.parametrize("options", [{}, {"feedback": True}])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(("workers", "bits"), [(4, 2), (4, 4), (4, 6), (16, 2), (16, 4)])
def test_bytes_cost_no_accuracy(workers: int, bits: int, correlation: float, options: dict[str, Any]) -> None:
    codec = Lattice(workers, bits, seed=3, down_bits="exact", **options)
    found = error(codec, correlation)
    assert found < 1.03 * error(replace(codec, terms="exact"), correlation)
    assert abs(found / codec.predicted_nmse(correlation=correlation) - 1) < 0.1
