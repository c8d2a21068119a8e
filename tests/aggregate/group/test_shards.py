"""Shards cover every unit once, with bytes that add up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import Codec, Lattice, Sketch, Sparse
from sumwire.codec.lattice.narrow import LEAST_SEGMENT
from sumwire.codec.sparse.compact import Compact
from tests.strategies import codecs, tensors


@given(codecs(workers=4), tensors(), st.integers(1, 9))
def test_shards_cover_the_tensor(codec: Lattice, x: NDArray[np.float32], ranks: int) -> None:
    assume(np.abs(x).max(initial=0) < 1e30)
    terms = codec.propose(x)
    edges = codec.edges(terms, ranks)
    assert (edges[0], edges[-1], len(edges)) == (0, len(terms.sizes), ranks + 1)
    assert list(edges) == sorted(edges)
    payload = codec.encode(x, terms, rank=0)
    data, sent = payload.cut(edges)
    assert data.tobytes() == payload.data.tobytes()
    assert sum(sent) == payload.nbytes
    assert sent == codec.payload_sizes(terms, edges)
    total = codec.add([payload]).narrow()
    sizes = codec.sum_sizes(terms, edges)
    assert sum(sizes) == total.nbytes
    for (lo, hi), up, down in zip(pairwise(edges), sent, sizes, strict=True):
        assert payload.part(lo, hi).nbytes == up
        assert total.part(lo, hi).nbytes == down


@given(st.integers(2, 9))
def test_sums_are_shared_evenly(ranks: int) -> None:
    codec = Lattice(ranks, 4, down_bits="exact")
    x = np.random.default_rng(ranks).standard_normal(300_000).astype(np.float32)
    x[: len(x) // 2] *= 30  # so that payloads are not
    terms = codec.propose(x)
    down = codec.sum_sizes(terms, codec.edges(terms, ranks))
    assert max(down) - min(down) <= 2 * codec.block * 32 // 8
    narrow = replace(codec, down_bits=5)
    down = narrow.sum_sizes(terms, narrow.edges(terms, ranks))
    assert max(down) - min(down) <= 2 * narrow.block * LEAST_SEGMENT, "at most 8 bits per value of two segments"


@pytest.mark.parametrize("codec", [Sparse(4), Compact(4), Sketch(4)], ids=lambda codec: type(codec).__name__)
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("size", [0, 1, 5, 1000])
def test_other_codecs_cut_evenly(codec: Codec, size: int, ranks: int) -> None:
    x = np.ones(size, np.float32)
    carried = codec.for_owners(ranks)
    terms = carried.propose(x)
    edges = carried.edges(terms, ranks)
    assert (edges[0], len(edges)) == (0, ranks + 1)
    assert max(np.diff(edges)) - min(np.diff(edges)) <= 1
    data, sent = carried.encode(x, terms, rank=0).cut(edges)
    assert (len(data), len(sent)) == (sum(sent), ranks)
