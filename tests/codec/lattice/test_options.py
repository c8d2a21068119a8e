"""Options of a Lattice: which are refused, and what follows from the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import ConfigError, Lattice


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
        ({"bits": 0}, r"bits=0 is not in 1..8, for widths='energy': choose the average bits per value within these"),
        ({"bits": -1}, "bits=-1 is not in 1..8"),
        ({"bits": 99}, "bits=99 is not in 1..8"),
        ({"bits": 1, "widths": (2, 4)}, r"bits=1 is not in 2..4, for widths=\(0, 2, 4\)"),
        ({"bits": "4"}, "bits='4' is not a whole number: pass an int"),
        ({"bits": 4.0}, "bits=4.0 is not a whole number: pass an int"),
        ({"bits": True}, "bits=True is not a whole number: pass an int"),
        ({"workers": 0}, "workers=0 is not in 1..65536"),
        ({"workers": "4"}, "workers='4' is not a whole number in 1..65536: pass an int"),
        ({"seed": -1}, r"seed=-1 is not in 0..2\*\*64-1"),
        ({"energy": float("nan")}, "energy=nan is not a number in 0..2: pass a float within these limits"),
        ({"total_bits": 0}, "total_bits=0 is too few for 4 workers: .* need 2; pass total_bits=2 or more"),
        ({"total_bits": 3, "down_bits": "exact"}, "too few for 4 workers: .* need 4; pass total_bits=4 or more"),
        ({"total_bits": 1}, "total_bits=1 is too few for 4 workers"),
        ({"bits": 4, "granularity": 14}, "granularity=14 is not in 15..1023"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": "a"}, "clip='a' is not a number"),
        ({"energy": True}, "energy=True is not a number"),
        ({"rotate": "no"}, "rotate='no'"),
        ({"family_bits": 9}, "bits=4 is not in"),
        ({"bits": 6, "family_bits": 4}, "bits=6 is not in 1..4"),
        ({"widths": 4}, "widths=4"),
        ({"total_bits": 8, "widths": (0, 8)}, "total_bits=8 is too few for 4 workers: a 8-bit index"),
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
    codec = Lattice(workers, total_bits=total)
    assert codec.bits + (codec.narrow_bits or codec.sum_bits) <= total
    assert codec.headroom >= workers
    if total < 1 + workers.bit_length():
        with pytest.raises(ConfigError, match="too few"):
            Lattice(workers, total_bits=total, down_bits="exact")
        return
    codec = Lattice(workers, total_bits=total, down_bits="exact")
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
    codec = Lattice(4, 3, widths=(0, 2, 4, 8), down_bits="exact")
    x = np.random.default_rng(0).standard_normal(20_000).astype("f4")
    assert 2.5 < codec.propose(x).payload_bytes(codec) * 8 / x.size <= 3
    assert codec.predicted_nmse() == pytest.approx(
        Lattice(4, 2, widths="fixed", down_bits="exact").predicted_nmse(), rel=0.05
    )
    assert Lattice(4, total_bits=12, widths=(0, 5, 8)).bits == 5


def test_granularity_is_quick_and_other_widths_stay_small() -> None:
    codec = Lattice(4, 4, granularity=200)
    assert [s.granularity for s in codec.scheme.lattices if s] == [1, 49, 63, 200, 63, 63, 127, 255]
    assert Lattice(4, 1, granularity=1023, table="uniform").headroom >= 4


def test_wider_lanes_hold_more() -> None:
    assert Lattice(4, 4, lane_bits=16).headroom > 200


def test_nothing_is_predicted_without_rotation() -> None:
    with pytest.raises(ConfigError, match="nothing can be predicted"):
        Lattice(4, 4, rotate=False).predicted_nmse()


def test_a_codec_is_solved_once() -> None:
    assert Lattice(11, 4)._family is Lattice(11, 4)._family
    assert Lattice(11, 4).with_bits(2).scheme is Lattice(11, 4).with_bits(3).scheme
