"""Error feedback: nothing is lost, whatever happens to a payload on its way."""

from __future__ import annotations

import io
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sumwire import ConfigError, Lattice, MismatchError, NonFiniteError, Residual, RoundError


@given(st.integers(1, 4), st.integers(1, 3000), st.integers(0, 2**32 - 1), st.booleans())
def test_everything_arrives_or_stays(bits: int, size: int, seed: int, lossy: bool) -> None:
    """sum(x) = sum(what arrived) + residual, with random parts lost on the way."""
    rng = np.random.default_rng(seed)
    codec = Lattice(1, bits, block=64, feedback=True)
    memory = Residual(codec)
    given_, arrived = np.zeros(size), np.zeros(size)
    for round_id in range(5):
        x = rng.standard_normal(size).astype("f4")
        given_ += x
        payload = memory.encode(codec.propose(memory.correct(x)), rank=0, round_id=round_id)
        mean = codec.decode(payload).astype("f8")
        whole = size // 64
        if lossy and whole:
            lost = payload.part(*sorted(rng.integers(0, whole + 1, 2).tolist()))
            memory.lost(lost)
            mean -= codec.decode(lost, missing="zero")
        arrived += mean
    assert np.allclose(arrived + memory.value, given_, atol=1e-4)


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 2000),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 0.1, 0.9]),
)
def test_workers_count_what_was_lost_once(workers: int, bits: int, size: int, seed: int, loss: float) -> None:
    """n * sum(means) + all residuals = all that went in, whatever blocks of whichever worker are lost."""
    rng = np.random.default_rng(seed)
    codec = Lattice(workers, bits, block=64, feedback=True)
    memories = [Residual(codec) for _ in range(workers)]
    went_in, means = np.zeros(size), np.zeros(size)
    for round_id in range(4):
        xs = rng.standard_normal((workers, size)).astype("f4")
        went_in += xs.sum(axis=0, dtype="f8")
        terms = reduce(or_, [codec.propose(memory.correct(x)) for memory, x in zip(memories, xs, strict=True)])
        arrived = []
        for rank, memory in enumerate(memories):
            payload = memory.encode(terms, rank=rank, round_id=round_id)
            # Whole blocks, and the rest, whose blocks may share bytes.
            spans = [*((k, k + 1) for k in range(size // 64)), (size // 64, len(payload.widths))]
            for span in spans:
                part = payload.part(*span)
                if rng.random() < loss:
                    memory.lost(part)
                else:
                    arrived.append(part)
        if arrived:
            means += codec.decode(codec.add(arrived), divide_by="workers")
    kept = np.sum([memory.value for memory in memories], axis=0, dtype="f8")
    np.testing.assert_allclose(workers * means + kept, went_in, atol=1e-4 * workers)


def test_complete_sums_have_the_same_bits_whatever_they_are_divided_by() -> None:
    codec = Lattice(3, 4, block=64)
    xs = np.random.default_rng(0).standard_normal((3, 500)).astype("f4")
    terms = reduce(or_, [codec.propose(x) for x in xs])
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    total = codec.add(payloads)
    assert np.array_equal(codec.decode(total), codec.decode(total, divide_by="workers"))
    two = codec.add(payloads[:2])
    assert np.allclose(codec.decode(two, divide_by="workers"), codec.decode(two) * np.float32(2 / 3), rtol=1e-6)
    with pytest.raises(ConfigError, match="divide_by='all' is not 'count' or 'workers'"):
        codec.decode(total, divide_by="all")  # type: ignore[arg-type]


def test_feedback_makes_a_coarse_codec_exact_over_time() -> None:
    x = np.random.default_rng(0).standard_normal(5000).astype("f4") * np.repeat([1, 0.01], 2500).astype("f4")
    codec = Lattice(1, 2, feedback=True)
    memory = Residual(codec)
    arrived = np.zeros(5000)
    for round_id in range(60):
        payload = memory.encode(codec.propose(memory.correct(x)), rank=0, round_id=round_id)
        arrived += codec.decode(payload)
    assert np.square(arrived / 60 - x).sum() < 0.01 * np.square(x).sum()
    # The quiet half, which gets no bits in most rounds, is not starved.
    assert np.square(arrived[2500:] / 60 - x[2500:]).sum() < 0.6 * np.square(x[2500:]).sum()


def test_a_loss_may_be_known_late() -> None:
    """After the next tensor was corrected, before it is encoded."""
    codec = Lattice(2, 4, block=64)
    memory = Residual(codec)
    x = np.random.default_rng(0).standard_normal(300).astype("f4")
    first = memory.encode(codec.propose(memory.correct(x)), rank=1)
    memory.correct(x)
    memory.lost(first.part(1, 3))
    corrected = memory.value + x
    second = memory.encode(codec.propose(corrected), rank=1, round_id=1)
    arrived = codec.decode(first) + codec.decode(second)
    arrived[64:192] -= codec.decode(first)[64:192]
    assert np.allclose(arrived + memory.value, 2 * x, atol=1e-5)
    other = codec.encode(x, codec.propose(x), rank=0)
    with pytest.raises(MismatchError, match="rank differs"):
        memory.lost(other)


def test_a_nan_never_gets_in() -> None:
    codec = Lattice(1, 4)
    memory = Residual(codec)
    x = np.ones(300, np.float32)
    memory.encode(codec.propose(memory.correct(x)), rank=0)
    before = memory.value.copy()
    x[7] = np.nan
    with pytest.raises(NonFiniteError, match="flat index 7"):
        codec.propose(memory.correct(x))
    assert np.array_equal(memory.value, before)
    x[7] = 1
    memory.encode(codec.propose(memory.correct(x)), rank=0, round_id=1)
    assert np.isfinite(memory.value).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_any_dtype_is_corrected_in_float32(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 200).to(dtype)
    memory = Residual(Lattice(1, 4))
    assert np.array_equal(memory.correct(x), x.float().numpy())


def test_state_goes_through_torch_save_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((30, 40)).astype("f4") for _ in range(6)]
    codec = Lattice(2, 3, feedback=True)

    def run(memory: Residual, rounds: range) -> list[bytes]:
        return [memory.encode(codec.propose(memory.correct(xs[r])), rank=1, round_id=r).data.tobytes() for r in rounds]

    first = Residual(codec)
    run(first, range(3))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    rest = run(first, range(3, 6))
    file.seek(0)
    second = Residual(codec)
    second.load_state_dict(torch.load(file))
    assert run(second, range(3, 6)) == rest


def test_wrong_states_are_refused() -> None:
    memory = Residual(Lattice(2, 4))
    memory.correct(np.ones(10, np.float32))
    state = memory.state_dict()
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, ConfigError, "keys"),
        (state | {"family": "other"}, MismatchError, "codec family differs"),
        (state | {"rank": 0, "shape": (3,)}, ConfigError, "10 values for shape"),
        (state | {"value": np.full(10, np.nan)}, ConfigError, "NaN"),
    ]
    for wrong, error, message in bad:
        with pytest.raises(error, match=message):
            memory.load_state_dict(wrong)
    memory.load_state_dict(Residual(Lattice(2, 4)).state_dict())
    with pytest.raises(RoundError, match="residual is empty"):
        _ = memory.value


def test_calls_out_of_order_are_refused() -> None:
    codec = Lattice(1, 4)
    memory = Residual(codec)
    x = np.ones(10, np.float32)
    with pytest.raises(RoundError, match=r"call correct\(x\)"):
        memory.encode(codec.propose(x), rank=0)
    memory.correct(x)
    memory.encode(codec.propose(x), rank=0)
    with pytest.raises(RoundError, match=r"call correct\(x\)"):
        memory.encode(codec.propose(x), rank=0)
    with pytest.raises(MismatchError, match="shape differs"):
        memory.correct(np.ones(11, np.float32))


def test_a_round_that_fails_costs_nothing() -> None:
    codec = Lattice(1, 4, block=64)
    memory = Residual(codec)
    x = np.linspace(1, 2, 500, dtype=np.float32)
    memory.encode(codec.propose(memory.correct(x)), rank=0)
    before = memory.value.copy()
    memory.correct(x)
    with pytest.raises(MismatchError, match="do not cover"):
        memory.encode(codec.propose(x / 10), rank=0, round_id=1)
    assert np.array_equal(memory.value, before)
    with pytest.raises(RoundError, match=r"call correct\(x\)"):
        memory.encode(codec.propose(x * 2), rank=0, round_id=1)
    assert np.array_equal(memory.correct(x), x + before)
