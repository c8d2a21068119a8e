"""Sparse: the bits of the dense sum from left to right, whatever the inputs, in no more bytes than dense."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from sumwire import ConfigError, InputError, MismatchError, RoundError, Sketch, Sparse, average
from sumwire.codec.sparse.parts import SparsePayload
from sumwire.codec.sparse.sharding import deal
from sumwire.kernels import backend
from tests import ON_REFERENCE

Floats = NDArray[np.float32]

# Any bits: NaN with payloads, signalling ones, both zeros, denormals; and mostly +0.0.
BITS = st.one_of(
    st.just(0), st.just(0), st.integers(0, 2**32 - 1), st.sampled_from([0x80000000, 0x7F800000, 0x7FA00001, 1, 0xFFC0])
)


@st.composite
def tensors(draw: st.DrawFn, most: int = 6, dtype: Any = np.float32) -> list[Any]:
    """One for each worker, of one size."""
    size = draw(st.integers(0, 200))
    n = draw(st.integers(1, most))
    word = {2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]
    bits = hnp.arrays(np.uint32, size, elements=BITS, fill=st.just(np.uint32(0)))
    shift = 32 - 8 * np.dtype(dtype).itemsize
    return [(draw(bits) >> np.uint32(shift)).astype(word).view(dtype) for _ in range(n)]


def left_to_right(xs: list[Floats]) -> Floats:
    total = xs[0].copy()
    with np.errstate(all="ignore"):
        for x in xs[1:]:
            total += x
    return total


def over(total: Floats, count: int) -> Floats:
    if count == 1:
        return total  # the mean of one is itself: dividing would quiet a signalling NaN
    with np.errstate(all="ignore"):
        mean: Floats = total / np.float32(count)
    return mean


def payloads(codec: Sparse, xs: list[Any], round_id: int = 0) -> list[SparsePayload]:
    return [codec.encode(x, codec.propose(x), rank=rank, round_id=round_id) for rank, x in enumerate(xs)]


def support(rng: np.random.Generator, size: int, density: float) -> Floats:
    return np.where(rng.random(size) < density, rng.standard_normal(size), 0).astype(np.float32)


@given(tensors(), st.randoms(use_true_random=False))
def test_the_sum_has_the_bits_of_the_dense_one_in_any_order_of_adding(xs: list[Floats], random: Any) -> None:
    codec = Sparse(len(xs), block=64)
    shuffled = payloads(codec, xs)
    random.shuffle(shuffled)
    total = shuffled[0]
    for payload in shuffled[1:]:
        total = total + payload  # type: ignore[assignment]
    expected = left_to_right(xs)
    assert codec.sum_of(total).tobytes() == expected.tobytes()
    assert codec.decode(total).tobytes() == over(expected, len(xs)).tobytes()
    assert average(codec, xs).tobytes() == over(expected, len(xs)).tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@given(data=st.data())
def test_half_precision_is_summed_in_float32(dtype: Any, data: st.DataObject) -> None:
    xs = data.draw(tensors(dtype=dtype))
    codec = Sparse(len(xs))
    expected = left_to_right([x.astype(np.float32) for x in xs])
    assert np.array_equal(codec.sum_of(codec.add(payloads(codec, xs))), expected, equal_nan=True)


@pytest.mark.parametrize("n", [2, 15, 16, 17] if ON_REFERENCE else [2, 4, 15, 16, 17, 64])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
def test_many_workers(n: int, density: float) -> None:
    rng = np.random.default_rng(n)
    xs = [support(rng, 20_011, density) * np.float32(10.0 ** rng.integers(-20, 20)) for _ in range(n)]
    codec = Sparse(n)
    sent = payloads(codec, xs)
    total = codec.add(sent)
    assert codec.sum_of(total).tobytes() == left_to_right(xs).tobytes()
    dense = 4 * 20_011
    assert all(payload.nbytes <= dense + 8 * n for payload in sent)
    assert total.nbytes <= dense + 8 * n


@pytest.mark.parametrize("kind", ["disjoint", "identical", "column", "rows"])
def test_supports_of_every_kind(kind: str) -> None:
    rng, size, n = np.random.default_rng(5), 64_000, 4
    xs = []
    for rank in range(n):
        x = np.zeros((1000, 64), np.float32)
        where: Any = {
            "disjoint": np.s_[rank::n, ::7],
            "identical": np.s_[::50],
            "column": np.s_[:, 3],  # the same lane of every block
            "rows": rng.choice(1000, 20, replace=False),
        }[kind]
        x[where] = rng.standard_normal(x[where].shape)
        xs.append(x)
    codec = Sparse(n)
    total = codec.add(payloads(codec, xs))
    assert codec.sum_of(total).tobytes() == left_to_right(xs).tobytes()
    assert codec.sum_of(total).shape == (1000, 64)
    entries = sum(int(np.count_nonzero(x)) for x in xs)
    # An index bit or two for rows, less than a byte for what is scattered at this density.
    assert sum(p.nbytes for p in payloads(codec, xs)) < entries * 5 + 64 * n * n
    assert size == xs[0].size


@given(st.integers(0, 3000), st.integers(1, 9), st.sampled_from([None, 64, 256]), st.integers(0, 2**64 - 1))
def test_shards_hold_every_coordinate_once_and_evenly(size: int, n: int, block: int | None, seed: int) -> None:
    shards = deal(size, n, block, seed)
    every = np.concatenate([*shards.starts, np.empty(0, np.int64)])
    assert sorted(every) == list(range(0, size, shards.block))
    assert sum(shards.bits) == size
    lengths = [len(starts) for starts in shards.starts]
    assert max(lengths) - min(lengths) <= 1


def test_hot_rows_have_many_owners() -> None:
    x = np.zeros(1 << 20, np.float32)
    x[: 1 << 17] = 1  # an eighth of the tensor has all the entries
    [payload] = payloads(Sparse(8), [x])
    assert max(payload.sizes) < 1.1 * min(payload.sizes)
    x = np.zeros(1 << 22, np.float32)
    x.reshape(-1, 8 * 4096)[:, :100] = 1  # every eighth block, as a table with wide rows may have it
    [payload] = payloads(Sparse(8), [x])
    assert max(payload.sizes) < 3 * min(payload.sizes)


def test_parts_of_payloads_add_by_themselves() -> None:
    rng, n = np.random.default_rng(0), 4
    xs = [support(rng, 5000, 0.1) for _ in range(n)]
    codec = Sparse(n)
    every = payloads(codec, xs)
    expected = left_to_right(xs)
    whole = codec.add(every)
    pieces = [codec.add([p.part(lo, hi) for p in every]) for lo, hi in ((0, 1), (1, 3), (3, 4))]
    for piece, (lo, hi) in zip(pieces, ((0, 1), (1, 3), (3, 4)), strict=True):
        assert piece.closed().data.tobytes() == whole.part(lo, hi).data.tobytes()
        mean = codec.decode(piece, missing="zero")
        here = np.concatenate([np.arange(s, s + 64) for k in range(lo, hi) for s in codec.deal(5000).starts[k]])
        here = here[here < 5000]
        assert np.array_equal(mean[here], over(expected, n)[here])
    with pytest.raises(RoundError, match="3 of 4 shards"):
        codec.decode(pieces[0])
    some = codec.add([every[0], every[1].part(0, 2), every[1].part(2, 4), every[2].part(1, 2)])
    counts = some.counts_of_all()
    assert counts.tolist() == [2, 3, 2, 2]
    assert np.isfinite(codec.decode(some)).all()


def test_a_shard_that_nobody_sent_stays_empty() -> None:
    x = np.full(1000, -0.0, np.float32)
    codec = Sparse(3)
    [payload] = payloads(codec, [x])
    some = codec.add([payload.part(0, 1), payload.part(2, 3)]).closed()
    assert some.counts == (1, 0, 1)
    assert some.sizes[1] == 4  # an empty index
    mean = codec.decode(some, missing="zero")
    assert sorted(set(mean.view(np.uint32).tolist())) == [0, 0x80000000]
    nothing = codec.add([payload.part(1, 1)])
    assert nothing.nbytes == 0
    assert not codec.decode(nothing, missing="zero").any()


def test_a_worker_adds_only_once_and_a_closed_sum_takes_no_more() -> None:
    xs = [np.ones(100, np.float32)] * 3
    codec = Sparse(3)
    a, b, c = payloads(codec, xs)
    with pytest.raises(MismatchError, match="rank 0 is in the sum already"):
        codec.add([a, b, a])
    closed = (a + b).closed()
    assert codec.decode(closed).tobytes() == np.ones(100, np.float32).tobytes()
    with pytest.raises(MismatchError, match="closed"):
        codec.add([closed, c])


def test_empty_parts_add_in_any_order() -> None:
    x = np.ones(200, np.float32)
    codec = Sparse(2)
    [payload] = payloads(codec, [x])
    for parts in itertools.permutations([payload.part(0, 0), payload.part(0, 2), payload.part(2, 2)]):
        total = codec.add(list(parts))
        assert total.count == total.closed().count == 1
        assert np.array_equal(codec.sum_of(total), x)


@pytest.mark.skipif(backend.name() != "native", reason="NumPy does as the CPU is told")
@pytest.mark.parametrize("codec", [Sparse(2), Sketch(2)])
def test_denormals_survive_a_cpu_that_was_told_to_flush_them(codec: Any) -> None:
    xs = np.zeros((2, 300), np.float32)
    xs.view(np.uint32)[:, ::7] = [[1], [2]]
    xs[0, 5], xs[1, 9] = 1e30, 1e-40  # so far apart that no lattice holds both
    expected = left_to_right(list(xs))
    assert torch.set_flush_denormal(True)
    try:
        terms = codec.propose(xs[0]) | codec.propose(xs[1])
        total = codec.add([codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)])
        found = codec.sum_of(total), codec.decode(total)
    finally:
        torch.set_flush_denormal(False)
    assert found[0].tobytes() == expected.tobytes()
    assert found[1].tobytes() == over(expected, 2).tobytes()


def test_what_does_not_belong_together() -> None:
    x, codec = np.ones(100, np.float32), Sparse(2)
    a = codec.encode(x, codec.propose(x), rank=0)
    for other, what in (
        (Sparse(2, seed=1), "codec family"),
        (Sparse(3), "codec family"),
        (Sparse(2, block=64), "family"),
    ):
        with pytest.raises(MismatchError, match=what):
            codec.add([a, other.encode(x, other.propose(x), rank=1)])
        with pytest.raises(MismatchError, match=what):
            codec.propose(x) | other.propose(x)
    with pytest.raises(MismatchError, match="shape"):
        codec.propose(x) | codec.propose(x[:50])
    with pytest.raises(MismatchError, match="round"):
        codec.add([a, codec.encode(x, codec.propose(x), rank=1, round_id=1)])
    assert codec.propose(x) | codec.propose(x) == codec.propose(x)


def test_torch_tensors_also_of_sparse_layouts() -> None:
    dense = torch.zeros(50, 8)
    dense[3], dense[40, 2] = 1.5, -2
    codec = Sparse(2)
    rows = torch.sparse_coo_tensor(torch.tensor([[3, 3]]), torch.full((2, 8), 0.75), (50, 8), check_invariants=True)
    one = torch.zeros(50, 8)
    one[40, 2] = -2
    for x in (dense, dense.to_sparse(), dense.to_sparse(1)):
        mean = average(codec, [x.to_dense(), x.to_dense()])
        assert torch.equal(torch.as_tensor(mean), dense)
        assert codec.encode(x, codec.propose(x), rank=0).data.tobytes() == payloads(codec, [dense])[0].data.tobytes()
    assert np.array_equal(codec.sum_of(codec.add(payloads(codec, [rows, one]))), dense.numpy())  # duplicates add up


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1 << 17}, {"block": 100}, {"block": 32}, {"seed": -1}])
def test_options_out_of_range_are_named(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Sparse(**({"workers": 2} | options))


def test_inputs_it_cannot_sum_are_refused() -> None:
    codec = Sparse(2)
    with pytest.raises(InputError, match="float64"):
        codec.propose(np.ones(3))
    with pytest.raises(InputError, match="int64"):
        codec.propose(np.ones(3, np.int64))
    x = np.ones(10, np.float32)
    with pytest.raises(ConfigError, match="rank 2"):
        codec.encode(x, codec.propose(x), rank=2)
    total = codec.add(payloads(codec, [x, x]))
    with pytest.raises(InputError, match="10 elements"):
        codec.decode(total, out=np.empty(9, np.float32))
    with pytest.raises(ConfigError, match="missing"):
        codec.decode(total, missing="skip")  # type: ignore[arg-type]


def test_out_is_written_whole() -> None:
    codec = Sparse(2)
    xs = [support(np.random.default_rng(k), 3000, 0.01) for k in range(2)]
    out = np.full(3000, np.nan, np.float32)
    assert codec.decode(codec.add(payloads(codec, xs)), out=out) is not None
    assert out.tobytes() == over(left_to_right(xs), 2).tobytes()
    out[:] = np.nan
    codec.decode(codec.add([p.part(0, 1) for p in payloads(codec, xs)]), out=out, missing="zero")
    assert np.isfinite(out).all()


def test_non_contiguous_and_pairs_of_all_orders() -> None:
    rng = np.random.default_rng(3)
    xs = [support(rng, 6000, 0.05).reshape(60, 100)[::2, ::3] for _ in range(3)]
    codec = Sparse(3)
    every = payloads(codec, xs)
    expected = left_to_right([np.ascontiguousarray(x) for x in xs])
    for order in itertools.permutations(every):
        assert np.array_equal(codec.sum_of(codec.add(list(order))), expected)
