"""Shards cover every block once, between whole blocks, with bytes that add up."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sumwire.aggregate.shards import cut, even

from sumwire import Lattice
from sumwire.kernels import lattice as kernels
from tests.strategies import codecs, tensors


@given(codecs(workers=4), tensors(), st.integers(1, 9))
def test_shards_cover_the_tensor(codec: Lattice, x: NDArray[np.float32], ranks: int) -> None:
    assume(np.abs(x).max(initial=0) < 1e30)
    terms = codec.propose(x)
    plan, shards = terms.layout(codec), cut(terms, codec, ranks)
    assert shards.edges[0] == 0
    assert shards.edges[-1] == len(terms.sizes)
    assert list(shards.edges) == sorted(shards.edges)
    assert sum(shards.up) == plan.payload_bytes
    assert sum(shards.down) == kernels.payload_bytes(terms.sizes, kernels.lane_bits(codec.scheme, plan.classes))
    payload = codec.encode(x, terms, rank=0)
    for rank in range(ranks):
        part = payload.part(shards.edges[rank], shards.edges[rank + 1])
        assert part.nbytes == shards.up[rank]


@given(st.integers(2, 9))
def test_sums_are_shared_evenly(ranks: int) -> None:
    codec = Lattice(ranks, 4)
    x = np.random.default_rng(ranks).standard_normal(300_000).astype(np.float32)
    x[: len(x) // 2] *= 30  # so that payloads are not
    shards = cut(codec.propose(x), codec, ranks)
    assert max(shards.down) - min(shards.down) <= 2 * codec.block * 32 // 8


@given(st.integers(0, 1000), st.integers(1, 20))
def test_even(size: int, ranks: int) -> None:
    edges = even(size, ranks)
    assert (edges[0], edges[-1], len(edges)) == (0, size, ranks + 1)
    assert max(np.diff(edges)) - min(np.diff(edges)) <= 1
