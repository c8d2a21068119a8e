"""What Lattice promises of a single payload: inputs, bytes, budgets, options."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import ConfigError, InputError, Lattice, MismatchError, NonFiniteError, RangeError, average
from sumwire.kernels import backend
from tests import ON_REFERENCE
from tests.strategies import codecs, tensors


def roundtrip(codec: Lattice, x: Any, round_id: int = 0) -> NDArray[np.float32]:
    return codec.decode(codec.encode(x, codec.propose(x), rank=0, round_id=round_id))


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
    for size, scale, cls in zip(terms.sizes, terms.scales, terms.plan(codec).classes, strict=True):
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


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (), (2, 3, 5), (1000,), (513,), (7, 64)])
def test_any_shape_comes_back(shape: tuple[int, ...]) -> None:
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), dtype=np.float32)
    codec = Lattice(2, 8)
    mean = average(codec, [x, x])
    assert mean.shape == shape
    assert np.abs(mean - x).max(initial=0) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_dtypes_and_libraries(dtype: str, library: str) -> None:
    exact = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    codec = Lattice(2, 6)
    x: Any
    if library == "torch":
        x = torch.from_numpy(exact).to(getattr(torch, dtype))
        as_float32 = x.float().numpy()
    else:
        x = exact.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        as_float32 = x.astype(np.float32)
    assert codec.propose(x) == codec.propose(as_float32)
    terms = codec.propose(x)
    payload = codec.encode(x, terms, rank=1)
    assert payload.data.tobytes() == codec.encode(as_float32, terms, rank=1).data.tobytes()
    mean = average(codec, [x, x])
    assert mean.dtype == x.dtype
    assert type(mean) is type(x)
    assert tuple(mean.shape) == (40, 50)


def test_non_contiguous_and_foreign_byte_order() -> None:
    base = np.random.default_rng(0).standard_normal((60, 80)).astype(np.float32)
    codec = Lattice(1, 5)
    plain = base[::2, ::-1].copy()
    expected = codec.encode(plain, codec.propose(plain), rank=0).data.tobytes()
    strided: list[Any] = [base[::2, ::-1], torch.from_numpy(base).flip(1)[::2], plain.astype(">f4")]
    for x in strided:
        assert codec.encode(x, codec.propose(x), rank=0).data.tobytes() == expected
    bf16 = torch.from_numpy(base).to(torch.bfloat16).t()[::3]
    assert codec.propose(bf16) == codec.propose(bf16.contiguous().float().numpy())


def test_gradients_that_require_grad_are_read() -> None:
    x = torch.ones(100, requires_grad=True)
    assert Lattice(1, 4).propose(x).shape == (100,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_non_finite_is_refused_with_place_and_count(value: float, dtype: str) -> None:
    x = np.ones(5000, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    codec = Lattice(2, 4)
    terms = codec.propose(x)
    x[[1234, 4999]] = value
    for call in (lambda: codec.propose(x), lambda: codec.encode(x, terms, rank=0)):
        with pytest.raises(NonFiniteError, match="2 of 5000 values.*at flat index 1234; nothing was encoded") as caught:
            call()
        assert (caught.value.index, caught.value.count) == (1234, 2)


def test_float64_beyond_float32_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="1e\\+300.*flat index 3"):
        Lattice(1, 4).propose(np.array([1.0, 2.0, 3.0, 1e300]))


def test_the_largest_values_are_refused_rather_than_overflow() -> None:
    codec = Lattice(1, 4, block=64)
    with pytest.raises(RangeError, match=r"block 1 \(from flat index 64\).*scale the tensor down"):
        codec.propose(np.array([1.0] * 64 + [3e38] * 64, np.float32))
    big = np.full(300, 2.0**115, np.float32)
    assert np.isfinite(roundtrip(Lattice(1, 1), big)).all()


def test_denormals_survive() -> None:
    codec = Lattice(1, 8)
    x = (np.random.default_rng(0).standard_normal(2000) * 1e-42).astype(np.float32)
    mean = np.mean([roundtrip(codec, x, r).astype(np.float64) for r in range(50)], axis=0)
    assert np.square(mean - x).sum() < 0.01 * np.square(x.astype(np.float64)).sum()
    single = np.zeros(1024, np.float32)
    single[5] = 1e-45
    assert codec.propose(single).scales.max() > 0


def test_results_do_not_depend_on_flush_to_zero() -> None:
    codec = Lattice(1, 8)
    x = (np.random.default_rng(0).standard_normal(2000) * 1e-40).astype(np.float32)
    expected = roundtrip(codec, x).tobytes()
    if backend.name() != "native":
        pytest.skip("NumPy does as it is told")
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        assert roundtrip(codec, x).tobytes() == expected
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("x", [np.arange(5), np.ones(3, complex), torch.arange(5), np.array(["a"]), "abc", [None]])
def test_wrong_dtypes_are_refused(x: Any) -> None:
    with pytest.raises(InputError, match="cannot be encoded: use float32, float16, bfloat16 or float64"):
        Lattice(1, 4).propose(x)


def test_tensors_elsewhere_are_refused() -> None:
    with pytest.raises(InputError, match="masked array cannot be encoded"):
        Lattice(1, 4).propose(np.ma.masked_array(np.ones(3, np.float32), [0, 1, 0]))
    with pytest.raises(InputError, match="meta.*move it to the CPU"):
        Lattice(1, 4).propose(torch.ones(3, device="meta"))
    with pytest.raises(InputError, match="make it dense first"):
        Lattice(1, 4).propose(torch.ones(3).to_sparse())


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
    plan = codec.propose(x).plan(codec)
    assert set(plan.classes.tolist()) <= {0, *widths}
    assert plan.payload_bytes * 8 <= 4 * x.size


def test_the_floor_keeps_quiet_blocks_alive_unless_feedback_does() -> None:
    x = (np.random.default_rng(0).standard_normal(4096) * np.repeat([1e-6, 1.0, 1.0, 1.0], 1024)).astype("f4")
    assert Lattice(2, 2).propose(x).plan(Lattice(2, 2)).classes.min() == 1
    quiet = Lattice(2, 2, feedback=True)
    assert quiet.propose(x).plan(quiet).classes.min() == 0


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers=0"),
        ({"workers": 2.5}, "workers=2.5 is not a whole number"),
        ({"workers": True}, "workers=True is not a whole number"),
        ({"bits": "4"}, "bits='4' is not a whole number"),
        ({"widths": (0, 4.5)}, "widths=4.5 is not a whole number"),
        ({"workers": 1 << 17}, "workers=131072"),
        ({"bits": 9}, "bits=9"),
        ({"bits": -1}, "bits=-1"),
        ({"bits": 4, "total_bits": 12}, "not both"),
        ({"total_bits": 12, "lane_bits": 8}, "omit them"),
        ({"total_bits": 3}, "total_bits=3 is too few for 4 workers"),
        ({"bits": 4, "granularity": 14}, "granularity=14 is not in 15..1023"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": "a"}, "clip='a' is not a number"),
        ({"energy": True}, "energy=True is not a number"),
        ({"rotate": "no"}, "rotate='no'"),
        ({"family_bits": 9}, "bits=4 is not in"),
        ({"bits": 6, "family_bits": 4}, "bits=6 is not in 1..4"),
        ({"widths": 4}, "widths=4"),
        ({"total_bits": 12, "widths": (0, 8)}, "total_bits=12 is too few for 4 workers: a 8-bit index"),
        ({"clip": 0.6}, "clip=0.6"),
        ({"table": "best"}, "table='best'"),
        ({"rounding": "nearest"}, "rounding='nearest'"),
        ({"block": 100}, "block=100 is not a power of two"),
        ({"block": 32}, "block=32"),
        ({"block": 1 << 21}, "block=2097152"),
        ({"seed": -1}, "seed=-1"),
        ({"lane_bits": 4}, "lane_bits=4 is too narrow: 4 workers with bits=4 need 6"),
        ({"lane_bits": 40}, "lane_bits=40"),
        ({"energy": -0.5}, "energy=-0.5"),
        ({"energy": 3.0}, "energy=3.0"),
        ({"widths": "some"}, "widths='some'"),
        ({"widths": (0,)}, "at least one above 0"),
        ({"widths": (0, 2, 9)}, "must hold widths in 0..8"),
        ({"widths": (0, 8)}, "bits=4 is not in 8.."),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lattice(**({"workers": 4} | options))


@pytest.mark.parametrize(("rank", "round_id"), [(4, 0), (-1, 0), (0, -1), (0, 1 << 64)])
def test_ranks_and_rounds_are_checked(rank: int, round_id: int) -> None:
    x = np.ones(10, np.float32)
    codec = Lattice(4, 4)
    with pytest.raises(ConfigError, match="rank|round_id"):
        codec.encode(x, codec.propose(x), rank=rank, round_id=round_id)


@pytest.mark.parametrize("workers", [1, 3, 4, 9, 100, 1000, 65536])
def test_lanes_follow_the_number_of_workers(workers: int) -> None:
    """The published code silently carries past 8 workers."""
    for codec in (Lattice(workers, 4), Lattice.thc(workers, block=1024), Lattice(workers, 8), Lattice.uniform(workers)):
        assert codec.headroom >= workers
        for spec in codec.scheme.lattices:
            assert spec is None or workers * spec.granularity < 1 << spec.lane_bits


def test_the_papers_setting() -> None:
    codec = Lattice.thc(4)
    spec = codec.scheme.lattices[4]
    assert spec is not None
    assert (spec.granularity, codec.block, codec.sum_bits, codec.rounding) == (30, 1 << 20, 8, "independent")
    assert round(spec.clip, 4) == 2.1539
    assert Lattice.thc(9).sum_bits == 9
    even = Lattice.uniform(4)
    assert even.scheme.tables[4, 4].values.tolist() == list(range(16))


@given(st.integers(1, 300), st.integers(6, 24))
def test_total_bits_are_spent_on_both_directions(workers: int, total: int) -> None:
    if total < 1 + workers.bit_length():
        with pytest.raises(ConfigError, match="too few"):
            Lattice(workers, total_bits=total)
        return
    codec = Lattice(workers, total_bits=total)
    assert codec.bits + codec.sum_bits <= total
    assert codec.headroom >= workers


def test_numpy_integers_and_lists_are_as_good() -> None:
    codec = Lattice(np.int64(4), np.uint8(4), block=np.int32(256), seed=np.uint64(2**63), widths=[0, 2, 4])  # type: ignore[arg-type]
    assert codec == Lattice(4, 4, block=256, seed=2**63, widths=(0, 2, 4))
    x = np.ones(300, np.float32)
    terms = codec.propose(x)
    mine = codec.encode(x, terms, rank=np.int64(3), round_id=np.uint64(2**64 - 1))
    assert mine.data.tobytes() == codec.encode(x, terms, rank=3, round_id=2**64 - 1).data.tobytes()
    assert mine + codec.encode(x, terms, rank=0, round_id=2**64 - 1)
    with pytest.raises(ConfigError, match="rank=1.0 is not a whole number"):
        codec.encode(x, terms, rank=1.0)  # type: ignore[arg-type]


def test_equal_codecs_are_of_one_family_whatever_types_they_were_given() -> None:
    plain = Lattice(4, 4, clip=1 / 32, energy=0.5, widths=(0, 2, 4))
    odd = Lattice(4, 4, clip=np.float64(1 / 32), energy=np.float32(0.5), widths=[np.int64(4), 2, 0, 0])  # type: ignore[arg-type]
    assert odd == plain
    assert odd.family == plain.family


def test_an_average_between_the_allowed_widths() -> None:
    codec = Lattice(4, 3, widths=(0, 2, 4, 8))
    x = np.random.default_rng(0).standard_normal(20_000).astype("f4")
    assert 2.5 < codec.propose(x).payload_bytes(codec) * 8 / x.size <= 3
    assert codec.predicted_nmse() == pytest.approx(Lattice(4, 2, widths="fixed").predicted_nmse(), rel=0.05)
    assert Lattice(4, total_bits=12, widths=(0, 5, 8)).bits == 5


def test_used_codecs_terms_and_payloads_can_be_pickled_and_copied() -> None:
    x = np.random.default_rng(0).standard_normal(3000).astype("f4")
    codec = Lattice(4, total_bits=12, widths=(0, 2, 5)).with_bits(2)
    payload = codec.encode(x, codec.propose(x), rank=1)
    for copied in (pickle.loads(pickle.dumps(payload)), copy.deepcopy(payload)):
        assert copied.codec == codec
        assert np.array_equal(codec.decode(copied + payload), codec.decode(payload + payload))


def test_granularity_is_quick_and_other_widths_stay_small() -> None:
    codec = Lattice(4, 4, granularity=200)
    assert [s.granularity for s in codec.scheme.lattices if s] == [1, 49, 63, 200, 63, 63, 127, 255]
    assert Lattice(4, 1, granularity=1023, table="uniform").headroom >= 4


def test_wider_lanes_hold_more() -> None:
    assert Lattice(4, 4, lane_bits=16).headroom > 200


def test_nothing_is_predicted_without_rotation() -> None:
    with pytest.raises(ConfigError, match="nothing can be predicted"):
        Lattice(4, 4, rotate=False).predicted_nmse()


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


def test_a_codec_is_solved_once() -> None:
    assert Lattice(11, 4)._family is Lattice(11, 4)._family
    assert Lattice(11, 4).with_bits(2).scheme is Lattice(11, 4).with_bits(3).scheme
