"""Compact: a bitmap joined by OR, then the float32 sum of the union's values."""

from __future__ import annotations

from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import ConfigError, HeadroomError, MismatchError, RoundError, Sparse
from sumwire.codec.sparse import Compact
from tests.codec.sketch.samples import sparse

Floats = NDArray[np.float32]


@given(xs=sparse(max_workers=5), spare=st.integers(0, 2))
def test_the_mean_is_the_dense_one_in_the_order_of_adding(xs: list[Floats], spare: int) -> None:
    codec = Compact(len(xs) + spare)
    terms = reduce(or_, (codec.propose(x) for x in xs))
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    with np.errstate(all="ignore"):
        expected = reduce(np.add, xs)
        means = expected / np.float32(len(xs)), expected / np.float32(codec.workers)
    total = codec.add(payloads)
    assert total.nbytes == 4 * terms.count == payloads[0].nbytes
    for mean, divide_by in zip(means, ("count", "workers"), strict=True):
        np.testing.assert_array_equal(codec.decode(total, divide_by=divide_by), mean)


@given(xs=sparse(max_workers=3))
def test_join_is_idempotent_commutative_associative(xs: list[Floats]) -> None:
    codec = Compact(4)
    a, b, c = (codec.propose(xs[k % len(xs)]) for k in range(3))
    assert a | a == a
    assert a | b == b | a
    assert (a | b) | c == a | (b | c)


def test_terms_of_others_and_too_many_workers_are_refused() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(MismatchError, match="needs its own terms"):
        Compact(2).encode(x, Sparse(2).propose(x), rank=0)
    with pytest.raises(MismatchError, match="codec family differs"):
        _ = Compact(2).propose(x) | Compact(3).propose(x)
    with pytest.raises(ConfigError, match="workers=0 is not in 1..65536"):
        Compact(0)


def test_terms_must_cover_the_tensor_and_each_rank_adds_once() -> None:
    codec = Compact(2)
    a, b = np.array([1, 0, 0], np.float32), np.array([0, 0, 2], np.float32)
    with pytest.raises(MismatchError, match="do not cover x"):
        codec.encode(a, codec.propose(b), rank=0)
    terms = codec.propose(a) | codec.propose(b)
    one, other = codec.encode(a, terms, rank=0), codec.encode(b, terms, rank=1)
    with pytest.raises(MismatchError, match="adds once"):
        codec.add([one, one])
    with pytest.raises(HeadroomError, match="payload 3"):
        codec.add([one + other, other])


def test_parts_add_to_parts_and_decode_only_where_nothing_is_missing() -> None:
    codec, x = Compact(2), np.array([1, 0, 2, 3, 0, 4], np.float32)
    terms = codec.propose(x)
    one, other = (codec.encode(x, terms, rank=rank).part(1, 4).part(2, 4) for rank in range(2))
    total = one + other
    np.testing.assert_array_equal(codec.decode(total, missing="zero"), [0, 0, 0, 3, 0, 4])
    with pytest.raises(RoundError, match="2 of the union's 4 coordinates are not in the sum"):
        codec.decode(total)
    with pytest.raises(ConfigError, match=r"coordinates 1\.\.3 of the union are not within 2\.\.4"):
        total.part(1, 3)
    with pytest.raises(MismatchError, match="range of the union's coordinates differs"):
        codec.add([one, codec.encode(x, terms, rank=1)])
