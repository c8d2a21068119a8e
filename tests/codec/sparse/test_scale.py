"""Sparse with many workers: nothing grows with their square, and sums stay those of the dense tensors."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import ConfigError, MismatchError, Sparse
from sumwire.codec.algebra import MAX_WORKERS
from sumwire.codec.sparse.parts import SparsePayload
from sumwire.wire.frame import parse, to_bytes
from tests.wire.test_golden_sparse import dense, spec_read


def some(seed: int, size: int, density: float = 0.01) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(size) < density, rng.standard_normal(size), 0).astype(np.float32)


def test_a_payload_does_not_grow_with_the_workers() -> None:
    x = some(0, 20_000)
    few, many = (Sparse(n).encode(x, Sparse(n).propose(x), rank=0) for n in (64, MAX_WORKERS))
    assert len(many.sizes) == len(few.sizes) == 64
    assert many.data.tobytes() == few.data.tobytes()


def test_sums_of_thousands_are_the_sum_from_left_to_right() -> None:
    n, size = 1024, 3000
    codec = Sparse(n)
    xs = [some(seed, size, 0.003) for seed in range(8)]
    terms = codec.propose(xs[0])
    made = [parse(to_bytes(codec.encode(x, terms, rank=0))).payload(codec, terms) for x in xs]
    total = codec.add([replace(made[rank % 8], rank=rank) for rank in reversed(range(n))])
    expected = np.zeros(size, np.float32)
    for rank in range(n):
        expected += xs[rank % 8]
    assert total.count == n
    assert codec.sum_of(total).tobytes() == expected.tobytes()
    assert codec.decode(total).tobytes() == (expected / np.float32(n)).tobytes()


@given(
    shards=st.integers(1, 130),
    size=st.integers(0, 9000),
    block=st.sampled_from([None, 64, 128]),
    data=st.data(),
)
def test_any_number_of_shards_has_the_spec_s_bytes_and_sum(
    shards: int, size: int, block: int | None, data: st.DataObject
) -> None:
    codec = Sparse(3, shards=shards, block=block, seed=data.draw(st.integers(0, 9)))
    xs = [some(seed, size, data.draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))) for seed in range(3)]
    payloads = [codec.encode(x, codec.propose(x), rank=rank) for rank, x in enumerate(xs)]
    # The reader of the specification knows one shard per worker.
    spec = SimpleNamespace(workers=shards, block=block, seed=codec.seed, family=codec.family)
    for x, payload in zip(xs, payloads, strict=True):
        assert dense(spec_read(to_bytes(payload), spec)[0], size) == x.tobytes()
    total = codec.add(payloads)
    expected = xs[0] + xs[1] + xs[2]
    assert dense(spec_read(to_bytes(total), spec)[0], size) == expected.tobytes()
    assert codec.sum_of(total).tobytes() == expected.tobytes()


@given(shards=st.integers(1, 40), data=st.data())
def test_counts_of_parts(shards: int, data: st.DataObject) -> None:
    codec = Sparse(8, shards=shards)
    x = some(0, 5000)
    whole = codec.encode(x, codec.propose(x), rank=0)
    spans = data.draw(st.lists(st.tuples(*[st.integers(0, shards)] * 2), min_size=1, max_size=8))
    parts: list[SparsePayload] = [replace(whole.part(*sorted(span)), rank=rank) for rank, span in enumerate(spans)]
    total = codec.add(parts)
    counts = [sum(part.lo <= shard < part.hi for part in parts) for shard in range(shards)]
    assert total.count == max(counts)
    assert total.counts_of_all().tolist() == counts


def test_shards_are_part_of_the_family_and_few_workers_keep_theirs() -> None:
    assert Sparse(4) == Sparse(4, shards=4)
    assert Sparse(3, block=64, seed=7).family == "sparse-0172770b24b1cf6e"  # as it was before shards had a number
    x = some(0, 1000)
    a, b = Sparse(100), Sparse(100, shards=100)
    assert (a.shards, b.shards) == (64, 100)
    with pytest.raises(MismatchError, match="codec family"):
        a.add([a.encode(x, a.propose(x), rank=0), b.encode(x, b.propose(x), rank=1)])


@pytest.mark.parametrize("shards", [-1, MAX_WORKERS + 1, 1.5, True])
def test_shards_out_of_range_are_named(shards: object) -> None:
    with pytest.raises(ConfigError, match="shards"):
        Sparse(2, shards=shards)  # type: ignore[arg-type]
