"""Terms are a join-semilattice, payloads a commutative monoid, and nothing else gets mixed in."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import sumwire
from sumwire import HeadroomError, Lattice, MismatchError
from sumwire.codec.lattice.parts import LatticePayload, LatticeSum
from sumwire.codec.lattice.terms import LatticeTerms
from tests.strategies import codecs, gradients

Workers = list[NDArray[np.float32]]


def join(codec: Lattice, xs: Workers) -> LatticeTerms:
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        joined = terms | codec.propose(x)
        assert isinstance(joined, LatticeTerms)
        terms = joined
    return terms


def payloads_of(codec: Lattice, xs: Workers, round_id: int = 0) -> list[LatticePayload]:
    terms = join(codec, xs)
    return [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]


def equal(a: LatticeSum, b: LatticeSum) -> bool:
    return bool(a.count == b.count and (a.lanes == b.lanes).all() and (a.counts == b.counts).all())


@given(codecs(workers=6), gradients(max_workers=3))
def test_join_is_idempotent_commutative_associative(codec: Lattice, xs: Workers) -> None:
    a, b, c = (codec.propose(xs[k % len(xs)]) for k in range(3))
    assert a | a == a
    assert a | b == b | a
    assert (a | b) | c == a | (b | c)
    assert (a | b) | a == a | b
    assert hash(a | b) == hash(b | a)


@given(codecs(workers=6), gradients(max_workers=4))
def test_add_is_commutative_associative_and_as_good_at_once(codec: Lattice, xs: Workers) -> None:
    payloads = payloads_of(codec, (xs * 4)[:4])
    p, q, r, s = payloads
    at_once = codec.add(payloads)
    assert isinstance(at_once, LatticeSum)
    for total in (((p + q) + r) + s, p + (q + (r + s)), (s + r) + (q + p), (p + q) + (r + s), sum(payloads)):
        assert isinstance(total, LatticeSum)
        assert equal(total, at_once)
    assert at_once.count == 4


@given(codecs(workers=5), gradients(max_workers=5))
def test_decode_of_sum_is_the_mean_of_decodes_in_lattice_integers(codec: Lattice, xs: Workers) -> None:
    """Exact in integers: the lanes of a sum are the sums of the lanes."""
    payloads = payloads_of(codec, xs)
    total = codec.add(payloads)
    assert isinstance(total, LatticeSum)
    singles = [codec.add([p]) for p in payloads]
    scheme = codec.scheme
    at = 0
    for size, cls in zip(total.lattice_terms.sizes, total.lattice_terms.layout(codec).classes, strict=True):
        spec = scheme.lattices[cls]
        if spec is None:
            continue
        kind, stop = f"<u{spec.lane_bytes}", at + int(size) * spec.lane_bytes
        parts = [s.lanes[at:stop].view(kind).astype(np.int64) for s in singles if isinstance(s, LatticeSum)]
        whole = total.lanes[at:stop].view(kind).astype(np.int64)
        assert (sum(parts) == whole).all()
        assert (whole <= len(xs) * spec.granularity).all()
        at = stop
    # ... so in floats only the roundings of the decodes themselves remain.
    mean = np.mean([codec.decode(p).astype(np.float64) for p in payloads], axis=0)
    scale = np.abs(mean).max(initial=0) + total.lattice_terms.scales.max(initial=0)
    assert np.allclose(codec.decode(total), mean, rtol=0, atol=1e-4 * scale + 1e-44)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 17, 30])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_one_more_than_the_headroom_is_refused_and_never_wraps(workers: int, bits: int) -> None:
    codec = Lattice(workers, bits, block=64)
    x = np.full(200, 3.0, np.float32)
    x[0] = 40
    payload = codec.encode(x, codec.propose(x), rank=workers - 1)
    assert codec.headroom >= workers
    full = codec.add([payload] * codec.headroom)
    assert np.allclose(codec.decode(full), codec.decode(payload), rtol=1e-5, atol=1e-5)
    with pytest.raises(HeadroomError, match=f"cannot add payload {codec.headroom + 1}.*workers>="):
        _ = full + payload
    with pytest.raises(HeadroomError, match="lanes hold"):
        codec.add([payload] * (codec.headroom + 1))
    with pytest.raises(HeadroomError, match="lanes hold"):
        _ = full + full


def test_what_does_not_belong_together_is_refused_by_name() -> None:
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    codec, other = Lattice(4, 4, seed=1), Lattice(4, 4, seed=2)
    terms = codec.propose(x)
    payload = codec.encode(x, terms, rank=0, round_id=7)
    with pytest.raises(MismatchError, match="codec family differs"):
        _ = terms | other.propose(x)
    with pytest.raises(MismatchError, match="shape differs"):
        _ = terms | codec.propose(x[:50])
    with pytest.raises(MismatchError, match="codec family differs"):
        _ = payload + other.encode(x, other.propose(x), rank=1, round_id=7)
    with pytest.raises(MismatchError, match=r"round differs \(7 and 8\)"):
        _ = payload + codec.encode(x, terms, rank=1, round_id=8)
    with pytest.raises(MismatchError, match="terms differs"):
        _ = payload + codec.encode(x, terms | codec.propose(2 * x), rank=1, round_id=7)
    with pytest.raises(MismatchError, match="shape differs"):
        _ = payload + codec.encode(x.reshape(10, 10), codec.propose(x.reshape(10, 10)), rank=1, round_id=7)
    with pytest.raises(MismatchError, match="codec family differs"):
        other.encode(x, terms, rank=0)
    with pytest.raises(MismatchError, match="codec family differs"):
        other.decode(payload + payload)
    with pytest.raises(MismatchError, match="shape differs"):
        codec.encode(x.reshape(4, 25), terms, rank=0)
    with pytest.raises(TypeError):
        _ = payload + 3  # type: ignore[operator]
    with pytest.raises(TypeError):
        _ = terms | x  # type: ignore[operator]
    with pytest.raises(sumwire.ConfigError, match="nothing to add"):
        codec.add([])


def test_terms_must_cover_what_is_encoded() -> None:
    codec = Lattice(2, 4, block=64)
    small, large = np.ones(500, np.float32), np.full(500, 3.0, np.float32)
    with pytest.raises(MismatchError, match=r"do not cover x: block 0 .*join this tensor's own terms"):
        codec.encode(large, codec.propose(small), rank=0)
    codec.encode(small, codec.propose(large), rank=0)


def test_codecs_are_values() -> None:
    assert Lattice(4, 4) == Lattice(4, 4)
    assert hash(Lattice(4)) == hash(Lattice(4, 4))
    assert len({Lattice(4, 4), Lattice(4, bits=4), Lattice(4, 5)}) == 2
    assert Lattice(4, 4).family != Lattice(5, 4).family
    with pytest.raises(AttributeError):
        Lattice(4, 4).bits = 3  # type: ignore[misc]
    families = {
        Lattice(4, 4, **options).family  # type: ignore[arg-type]
        for options in (
            {}, {"seed": 1}, {"block": 256}, {"clip": 0.01}, {"table": "uniform"}, {"rounding": "independent"},
            {"rotate": False}, {"lane_bits": 9}, {"widths": "fixed"}, {"widths": (0, 4, 8)}, {"energy": 0.5},
            {"feedback": True}, {"granularity": 40}, {"terms": "exact"},
        )
    }  # fmt: skip
    assert len(families) == 14


@given(codecs(workers=4), gradients(max_workers=3), st.data())
def test_parts_of_payloads_add_to_the_parts_of_the_sum(codec: Lattice, xs: Workers, data: st.DataObject) -> None:
    """Frames may come in any order and number; each block is divided by its own count."""
    payloads = payloads_of(codec, xs)
    sizes = payloads[0].lattice_terms.sizes
    whole = int((sizes >= 8).sum())
    cuts = sorted({0, len(sizes), *data.draw(st.lists(st.integers(0, whole), max_size=3))})
    parts = [p.part(a, b) for p in payloads for a, b in itertools.pairwise(cuts)]
    order = data.draw(st.permutations(range(len(parts))))
    total = codec.add(payloads)
    assert isinstance(total, LatticeSum)
    if parts:
        again = codec.add([parts[k] for k in order])
        assert isinstance(again, LatticeSum)
        assert equal(again, total)
        split = codec.add([total.part(a, b) for a, b in itertools.pairwise(cuts)])
        assert isinstance(split, LatticeSum)
        assert equal(split, total)


def test_lost_parts_leave_the_mean_of_what_arrived() -> None:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(1000).astype("f4") for _ in range(3)]
    codec = Lattice(3, 8, block=64)
    a, b, c = payloads_of(codec, xs)
    total = codec.add([a, b.part(0, 5), c.part(3, 5), c.part(8, len(c.widths))])
    assert isinstance(total, LatticeSum)
    assert total.counts.tolist()[:10] == [2, 2, 2, 3, 3, 1, 1, 1, 2, 2]
    assert total.count == 3
    mean = codec.decode(total)
    spans = {(0, 192): [0, 1], (192, 320): [0, 1, 2], (320, 512): [0], (512, 1000): [0, 2]}
    for (start, stop), ranks in spans.items():
        exact = np.mean([xs[r][start:stop] for r in ranks], axis=0)
        assert np.square(mean[start:stop] - exact).sum() < 1e-3 * np.square(exact).sum()


def test_blocks_that_nobody_sent_are_not_made_up() -> None:
    x = np.ones(300, np.float32)
    codec = Lattice(2, 4, block=64)
    part = codec.encode(x, codec.propose(x), rank=0).part(1, 3)
    with pytest.raises(sumwire.RoundError, match=r"nothing arrived of 5 of 7 blocks \(the first is 0\)"):
        codec.decode(part)
    mean = codec.decode(part, missing="zero")
    assert (mean[:64] == 0).all()
    assert (mean[192:] == 0).all()
    assert abs(mean[64:192].mean() - 1) < 0.2
    with pytest.raises(sumwire.ConfigError, match="missing="):
        codec.decode(part, missing="guess")  # type: ignore[arg-type]
