"""Sums over partitions: what is added, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import Lattice, average, dme
from sumwire.estimators.exchange import Exchange, Share
from sumwire.estimators.partitions import Partitions, Spread, split
from sumwire.wire.frame import to_bytes
from tests.estimators.data import WITHIN, name

ONES = np.ones(300)


def column_sums(rank: int, rows: Any) -> Share:
    return Share(np.array([len(rows)], np.float64), rows.sum(axis=0))


def shares(partitions: Partitions) -> Spread:
    return partitions.run(column_sums, partitions.rows)


@given(
    count=st.integers(1, 9),
    rows=st.integers(1, 30),
    scale=st.sampled_from([1e-130, 1e-30, 1.0, 1e30, 1e130]),
    seed=st.integers(0, 99),
)
def test_the_total_of_any_partitions_is_that_of_all_rows(count: int, rows: int, scale: float, seed: int) -> None:
    x = scale * np.random.default_rng(seed).normal(size=(rows, 300))
    with split(x, count, None) as partitions:
        assert partitions.sizes == [len(piece) for piece in np.array_split(x, min(count, rows))]
        units = np.full(300, partitions.unit)
        plain = Exchange(partitions, None, first_round=0)
        exact = plain.total(shares(partitions), units)
        assert plain.exact(shares(partitions)) == [rows]
        coded = Exchange(partitions, dme.Eden(8), first_round=0).total(shares(partitions), units)
    assert np.allclose(exact, x.sum(axis=0), rtol=1e-12, atol=1e-12 * scale)
    energy = sum(np.square(piece.sum(axis=0) / scale).sum() for piece in np.array_split(x, len(partitions)))
    assert np.square((coded - exact) / scale).sum() <= 0.001 * energy


def test_errors_follow_the_units() -> None:
    x = np.random.default_rng(0).normal(size=(16, 300))
    units = np.repeat([2.0**-10, 1.0], 150)
    with split(x * units, 16, None) as partitions:
        total = Exchange(partitions, dme.Eden(4), first_round=0).total(shares(partitions), units)
    errors = np.square(total / units - x.sum(axis=0)).reshape(2, 150).mean(axis=1)
    assert 0.5 < errors[0] / errors[1] < 2


def test_a_codec_adds_as_average_does() -> None:
    x, codec = np.random.default_rng(0).normal(size=(8, 300)).astype(np.float32), Lattice(8, 4, down_bits="exact")
    with split(x, 8, None) as partitions:
        exchange = Exchange(partitions, codec, first_round=5)
        totals = [exchange.total(shares(partitions), ONES) for _ in range(2)]
    for round_id, total in enumerate(totals, 5):
        assert np.array_equal(total, 8 * average(codec, x, round_id=round_id).astype(np.float64))
    assert not np.array_equal(*totals)


def test_bits_are_those_of_the_bytes_that_were_encoded() -> None:
    x = np.random.default_rng(0).normal(size=(4, 300))
    with split(x, 4, None) as partitions:
        surveys = partitions.bits
        assert surveys == 4 * 2 * 64
        scheme = dme.VariableLength(16)  # whose messages differ in length
        exchange = Exchange(partitions, scheme, first_round=9)
        exchange.total(shares(partitions), ONES)
    expected = 8 * sum(len(scheme.encode(row, rank=rank, round_id=9)) for rank, row in enumerate(x))
    assert partitions.bits - surveys == expected
    assert exchange.bits_per_value == expected / x.size


def test_bits_of_a_codec_are_those_of_all_its_frames() -> None:
    x, codec = np.random.default_rng(0).normal(size=(2, 300)), Lattice(2, 4)
    with split(x, 2, None) as partitions:
        exchange = Exchange(partitions, codec, first_round=9)
        exchange.total(shares(partitions), ONES)
    terms = codec.propose(x[0]) | codec.propose(x[1])
    frames = [to_bytes(codec.propose(row), round_id=9) for row in x]
    frames += [to_bytes(codec.encode(row, terms, rank=rank, round_id=9)) for rank, row in enumerate(x)]
    assert exchange.bits_per_value == 8 * sum(map(len, frames)) / x.size


@pytest.mark.parametrize(("scheme", "_more", "_less"), WITHIN, ids=name)
def test_rounds_have_noise_of_their_own(scheme: Any, _more: float, _less: float) -> None:
    with split(np.random.default_rng(0).normal(size=(8, 200)), 8, None) as partitions:
        first, second = (Exchange(partitions, scheme, first_round=start) for start in (0, 1))
        a, b = first.total(shares(partitions), ONES[:200]), first.total(shares(partitions), ONES[:200])
        assert np.array_equal(second.total(shares(partitions), ONES[:200]), b)
    lossless = name(scheme) in ("Sparse", "Sketch")
    assert np.array_equal(a, b) == lossless


def test_rows_are_taken_from_where_they_are() -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    with split(x, 7, None) as partitions:
        before = partitions.bits
        places = np.array([0, 2, 3, 11, 19])
        assert np.array_equal(partitions.take(places), x[places])
        assert partitions.bits - before == 5 * 2 * 32 + 3 * 2 * 64


def test_rows_that_are_taken_far_from_the_origin_are_told_apart() -> None:
    x = 1.7e9 + np.arange(40.0).reshape(20, 2) / 8
    x[19] = 0  # an outlier, and one of the three rows whose median is the origin
    with split(x, 7, None) as partitions:
        assert np.array_equal(partitions.take(np.arange(20))[:19], x[:19])
