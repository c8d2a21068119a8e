"""What Lattice promises of a single payload: error, bytes, budgets, buffers, randomness."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from sumwire import ConfigError, InputError, Lattice, MismatchError
from tests import ON_REFERENCE
from tests.strategies import codecs, tensors


@given(codecs(), tensors())
def test_the_budget_is_kept(codec: Lattice, x: NDArray[np.float32]) -> None:
    terms = codec.propose(x)
    payload = codec.encode(x, terms, rank=0)
    assert payload.nbytes == len(payload.data) == terms.payload_bytes(codec) <= (codec.bits * x.size + 7) // 8


@given(codecs(), tensors())
def test_error_is_bounded_by_the_range(codec: Lattice, x: NDArray[np.float32]) -> None:
    """No input, however odd, decodes to something further off than clamping and one step explain."""
    if codec.feedback:
        return  # blocks may go unsent
    terms = codec.propose(x)
    error = codec.decode(codec.encode(x, terms, rank=0)).astype(np.float64) - x
    start = 0
    for size, scale, cls in zip(terms.sizes, terms.scales, terms.layout(codec).classes, strict=True):
        part = error[start : start + size]
        start += size
        if cls == 0:
            assert (part == 0).all()
            continue
        spec = codec.scheme.lattices[cls]
        assert spec is not None
        width = codec.bits if codec.bits < codec.family_bits else cls
        gap = codec.scheme.tables[cls, min(width, cls)].gap.max() * 2 * spec.clip / spec.granularity
        norm = np.sqrt(np.square(part).mean())
        assert norm <= float(scale) * (1 + gap + 1e-3) + 1e-44


@given(codecs(), tensors())
def test_zeros_stay_exactly_zero(codec: Lattice, x: NDArray[np.float32]) -> None:
    x[: x.size // 2] = 0
    terms = codec.propose(x)
    mean = codec.decode(codec.encode(x, terms, rank=0))
    for block in np.flatnonzero(terms.scales == 0):
        start, stop = terms.span(int(block))
        assert mean[start:stop].tobytes() == bytes(4 * (stop - start))
    zero = np.zeros(x.size, np.float32)
    payload = codec.encode(zero, codec.propose(zero), rank=0)
    assert payload.nbytes == 0
    assert (codec.decode(payload) == 0).all()


def test_unequal_budgets_add() -> None:
    rng = np.random.default_rng(3)
    layers = np.repeat(np.exp(rng.standard_normal(20)), 1000)
    xs = [(rng.standard_normal(20_000) * layers).astype("f4") for _ in range(4)]
    family = Lattice(4, 4, block=256)
    codecs_ = [family, family, family.with_bits(3), family.with_bits(2)]
    terms = codecs_[0].propose(xs[0])
    for codec, x in zip(codecs_[1:], xs[1:], strict=True):
        terms = terms | codec.propose(x)
    payloads = [c.encode(x, terms, rank=r) for r, (c, x) in enumerate(zip(codecs_, xs, strict=True))]
    assert [p.nbytes * 8 <= c.bits * 20_000 for p, c in zip(payloads, codecs_, strict=True)] == [True] * 4
    assert payloads[1].nbytes > payloads[2].nbytes > payloads[3].nbytes
    mean = np.mean(xs, axis=0)

    def nmse(parts: list[Any]) -> float:
        return float(np.square(family.decode(family.add(parts)) - mean).sum() / np.square(mean).sum())

    mixed = nmse(payloads)
    equal = nmse([family.encode(x, terms, rank=r) for r, x in enumerate(xs)])
    assert 2 * equal < mixed < 0.5
    # Whoever sends less is still unbiased: the error averages out over rounds.
    rounds = 50 if ON_REFERENCE else 200
    single, few = xs[3], codecs_[3]
    own = family.propose(single)
    estimate = sum(few.decode(few.encode(single, own, rank=3, round_id=k)).astype("f8") for k in range(rounds)) / rounds
    once = np.square(few.decode(few.encode(single, own, rank=3)) - single).sum()
    assert np.square(estimate - single).sum() < 3 * once / rounds
    with pytest.raises(ConfigError, match=r"with_bits\(5\) is not in 1..4"):
        family.with_bits(5)


@pytest.mark.parametrize("widths", [(0, 2, 4, 8), (4,), (0, 1, 4)])
def test_only_allowed_widths_are_used(widths: tuple[int, ...]) -> None:
    x = (np.random.default_rng(0).standard_normal(30_000) * np.repeat(np.logspace(0, 4, 30), 1000)).astype("f4")
    codec = Lattice(2, 4, widths=widths, block=256)
    plan = codec.propose(x).layout(codec)
    assert set(plan.classes.tolist()) <= {0, *widths}
    assert plan.payload_bytes * 8 <= 4 * x.size


def test_the_floor_keeps_quiet_blocks_alive_unless_feedback_does() -> None:
    x = (np.random.default_rng(0).standard_normal(4096) * np.repeat([1e-6, 1.0, 1.0, 1.0], 1024)).astype("f4")
    assert Lattice(2, 2).propose(x).layout(Lattice(2, 2)).classes.min() == 1
    quiet = Lattice(2, 2, feedback=True)
    assert quiet.propose(x).layout(quiet).classes.min() == 0


def test_out_buffers_are_used() -> None:
    x = np.random.default_rng(0).standard_normal(5000).astype("f4")
    codec = Lattice(1, 4)
    terms = codec.propose(x)
    data, mean = np.zeros(9999, np.uint8), np.zeros(5000, np.float32)
    payload = codec.encode(x, terms, rank=0, out=data)
    assert np.shares_memory(payload.data, data)
    assert payload.data.tobytes() == codec.encode(x, terms, rank=0).data.tobytes()
    assert np.shares_memory(codec.decode(payload, out=mean), mean)
    bad: list[Any] = [np.zeros(3, np.uint8), np.zeros(9999, np.int8), np.zeros(9999, np.uint8)[::2], b"x" * 9999]
    for out in bad:
        with pytest.raises(InputError, match="out "):
            codec.encode(x, terms, rank=0, out=out)


def test_encode_in_place_leaves_what_was_not_sent() -> None:
    x = np.random.default_rng(0).standard_normal((50, 70)).astype("f4")
    codec = Lattice(1, 3)
    terms = codec.propose(x)
    rest = x.copy()
    payload = codec.encode_in_place(rest, terms, rank=0)
    assert np.array_equal(rest, x - codec.decode(payload))
    with pytest.raises(InputError, match="contiguous, writeable float32"):
        codec.encode_in_place(x.T, terms, rank=0)


def test_used_codecs_terms_and_payloads_can_be_pickled_and_copied() -> None:
    x = np.random.default_rng(0).standard_normal(3000).astype("f4")
    codec = Lattice(4, total_bits=12, widths=(0, 2, 5)).with_bits(2)
    payload = codec.encode(x, codec.propose(x), rank=1)
    for copied in (pickle.loads(pickle.dumps(payload)), copy.deepcopy(payload)):
        assert copied.codec == codec
        assert np.array_equal(codec.decode(copied + payload), codec.decode(payload + payload))


def test_without_rotation_a_coordinate_beyond_the_terms_is_refused() -> None:
    codec = Lattice(2, 4, rotate=False)
    x = np.full(600, 0.5, np.float32)
    x[0] = 1.0
    terms = codec.propose(x)
    for large in (1.1, 2.0, 3.9, 100.0):
        x[5] = large
        with pytest.raises(MismatchError, match="do not cover x: block 0"):
            codec.encode(x, terms, rank=0)


def test_terms_are_read_by_their_own_family_only() -> None:
    x = np.ones(600, np.float32)
    with pytest.raises(MismatchError, match="codec family differs"):
        Lattice(4, 4).propose(x).payload_bytes(Lattice(4, 4, energy=0.0))


def test_out_may_not_be_an_input() -> None:
    x = np.ones(600, np.float32)
    codec = Lattice(4, 4)
    terms = codec.propose(x)
    payload = codec.encode(x, terms, rank=0)
    total = payload + payload
    for call in (
        lambda: codec.add([total, payload], out=total.lanes),
        lambda: codec.encode(x, terms, rank=0, out=x.view(np.uint8)),
    ):
        with pytest.raises(InputError, match="shares memory with an input"):
            call()


@pytest.mark.parametrize("wrong", [np.ones(3), None, 3])
def test_only_payloads_and_sums_are_added_and_decoded(wrong: Any) -> None:
    codec = Lattice(2, 4)
    with pytest.raises(InputError, match="cannot be added"):
        codec.add([wrong])
    with pytest.raises(InputError, match="decode takes a payload or sum"):
        codec.decode(wrong)


def test_randomness_depends_on_seed_round_and_rank_only() -> None:
    x = np.random.default_rng(0).standard_normal(4000).astype("f4")
    codec = Lattice(4, 3)
    terms = codec.propose(x)
    payloads = {codec.encode(x, terms, rank=r, round_id=i).data.tobytes() for r in range(4) for i in range(3)}
    assert len(payloads) == 12
    assert codec.encode(x, terms, rank=2, round_id=1).data.tobytes() in payloads
    other = Lattice(4, 3, seed=1)
    assert other.encode(x, other.propose(x), rank=2, round_id=1).data.tobytes() not in payloads
