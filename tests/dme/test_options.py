"""Errors name options that are out of range, and schemes are values."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from sumwire import ConfigError, InputError, Lattice
from sumwire.dme import (
    Correlated,
    Drive,
    Eden,
    MeanScheme,
    Rotated,
    Sampled,
    StochasticBinary,
    StochasticLevels,
    VariableLength,
)
from tests.dme import every_scheme, vector


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("k", lambda: StochasticLevels(1)),
        ("k", lambda: StochasticLevels(65537)),
        ("k", lambda: StochasticLevels(2.0)),
        ("k", lambda: StochasticLevels(True)),
        ("k", lambda: Rotated(0)),
        ("k", lambda: Correlated("4")),
        ("k", lambda: VariableLength(1)),
        ("k", lambda: VariableLength("cube")),
        ("k", lambda: VariableLength(None)),
        ("2 levels, not 3", lambda: StochasticBinary(3)),
        ("block", lambda: Rotated(4, block=100)),
        ("block", lambda: Rotated(4, block=32)),
        ("block", lambda: Rotated(4, block=1 << 21)),
        ("block", lambda: Eden(2, block=65)),
        ("block", lambda: Drive(block=64.0)),
        ("bits", lambda: Eden(0)),
        ("bits", lambda: Eden(9)),
        ("bits", lambda: Eden(1.5)),
        ("seed", lambda: Drive(seed=-1)),
        ("seed", lambda: StochasticLevels(4, seed=2**64)),
        ("seed", lambda: Sampled(Drive(), 0.5, seed=1.0)),
        ("workers", lambda: Correlated(4, workers=0)),
        ("workers", lambda: Correlated(4, workers=65537)),
        ("p", lambda: Sampled(Drive(), 0)),
        ("p", lambda: Sampled(Drive(), 1.01)),
        ("p", lambda: Sampled(Drive(), -0.5)),
        ("p", lambda: Sampled(Drive(), float("nan"))),
        ("p", lambda: Sampled(Drive(), True)),
        ("p", lambda: Sampled(Drive(), "half")),
        ("sampled again", lambda: Sampled(Sampled(Drive(), 0.5), 0.5)),
    ],
)
def test_an_option_out_of_its_limits_is_named(name: str, make: Any) -> None:
    with pytest.raises(ConfigError, match=rf"\b{name}\b"):
        make()


def test_sampled_takes_schemes_only() -> None:
    for other in (None, 4, Lattice(2, 4), StochasticLevels):
        with pytest.raises(InputError, match="Sampled takes a scheme of sumwire.dme"):
            Sampled(other, 0.5)


@every_scheme
@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("rank=-1", {"rank": -1}),
        ("rank=4294967296", {"rank": 2**32}),
        ("rank=1.0", {"rank": 1.0}),
        ("rank=None", {"rank": None}),
        ("round_id=-1", {"round_id": -1}),
        ("round_id=18446744073709551616", {"round_id": 2**64}),
        ("round_id='3'", {"round_id": "3"}),
    ],
)
def test_a_wrong_rank_or_round_is_named(scheme: MeanScheme, name: str, where: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=name):
        scheme.encode(np.ones(3, np.float32), **where)


@every_scheme
def test_the_last_rank_and_round(scheme: MeanScheme) -> None:
    x = vector("gaussian", 30)
    message = scheme.encode(x, rank=2**32 - 1, round_id=2**64 - 1)
    assert len(message) == len(scheme.encode(x)) + 4 + 9
    assert np.isfinite(scheme.decode(message)).all()


def test_numpy_integers_are_integers() -> None:
    x = vector("gaussian", 70)
    i = np.int64
    for plain, numpy in (
        (StochasticLevels(5, seed=3), StochasticLevels(i(5), seed=np.uint64(3))),
        (Rotated(5, block=64), Rotated(np.uint8(5), block=i(64))),
        (VariableLength(9), VariableLength(i(9))),
        (Correlated(4, workers=3), Correlated(i(4), workers=i(3))),
        (Eden(3, block=64, seed=1), Eden(i(3), block=i(64), seed=i(1))),
        (Drive(block=64), Drive(block=i(64))),
        (Sampled(Drive(), 0.75), Sampled(Drive(), np.float64(0.75))),
        (Sampled(Drive(), 1.0), Sampled(Drive(), i(1))),
    ):
        assert plain == numpy
        assert repr(plain) == repr(numpy)
        assert plain.encode(x, rank=2, round_id=5) == numpy.encode(x, rank=i(2), round_id=np.uint64(5))
        assert plain.bits(70) == numpy.bits(i(70))
        assert plain.bound(70, 3) == numpy.bound(i(70), i(3))


@pytest.mark.parametrize("where", [{"rank": np.int64(3)}, {"round_id": np.int64(3)}])
def test_takes_part_knows_numpy_integers(where: dict[str, Any]) -> None:
    scheme = Sampled(Drive(), 0.5)
    assert scheme.takes_part(**where) == scheme.takes_part(**{name: int(value) for name, value in where.items()})


@pytest.mark.parametrize("where", [{"rank": -1}, {"rank": 1.5}, {"round_id": 2**64}])
def test_takes_part_names_a_wrong_rank_or_round(where: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(where))):
        Sampled(Drive(), 0.5).takes_part(**where)


# Schemes as values


@every_scheme
def test_schemes_are_values(scheme: MeanScheme) -> None:
    x = vector("gaussian", 60)
    message = scheme.encode(x)  # caches the fingerprint
    for other in (pickle.loads(pickle.dumps(scheme)), copy.copy(scheme), copy.deepcopy(scheme)):
        assert other == scheme
        assert hash(other) == hash(scheme)
        assert repr(other) == repr(scheme)
        assert other.encode(x) == message
        assert np.array_equal(other.decode(message), scheme.decode(message))
    with pytest.raises(AttributeError):
        scheme.seed = 5


def test_schemes_with_other_options_differ() -> None:
    others = [
        *(StochasticLevels(k, seed=seed) for k in (2, 3) for seed in (0, 1)),
        StochasticBinary(),
        *(Rotated(2, block=block) for block in (64, 128)),
        VariableLength(),
        VariableLength(2),
        *(Correlated(2, workers=workers) for workers in (2, 3)),
        Drive(),
        *(Eden(bits, block=block) for bits in (1, 2) for block in (64, 4096)),
        *(Sampled(scheme, p) for scheme in (Drive(), Eden(1)) for p in (0.25, 0.5)),
        Sampled(Drive(seed=1), 0.25),
    ]
    assert len(set(others)) == len(others)
    assert all((a == b) == (a is b) for a in others for b in others)
    assert len({repr(scheme) for scheme in others}) == len(others)
