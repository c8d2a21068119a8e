"""Equal codecs are one codec: same name, same repr, same bytes, whatever types their options came in."""

from __future__ import annotations

import pickle
from dataclasses import fields
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import ConfigError, Lattice, Sketch, Sparse
from sumwire.codec.base import Codec
from sumwire.wire.frame import build, describe

Options = dict[str, Any]
SEEDS = st.integers(0, 2**64 - 1)
"""Of a fresh seed nothing is cached: whichever codec is built first fills the caches for both."""


class Spelled(str, Enum):  # noqa: UP042  (a StrEnum would print as its value)
    """Equal to its value, but prints otherwise."""

    UNIFORM = "uniform"
    OPTIMAL = "optimal"
    STRATIFIED = "stratified"
    INDEPENDENT = "independent"
    ENERGY = "energy"
    FIXED = "fixed"


@st.composite
def lattice_options(draw: st.DrawFn) -> Options:
    bits = draw(st.integers(1, 8))
    return {
        "workers": draw(st.integers(1, 40)),
        "bits": bits,
        "clip": draw(st.sampled_from([None, 1 / 32, 0.01])),
        "table": draw(st.sampled_from(["optimal", "uniform"])),
        "rounding": draw(st.sampled_from(["stratified", "independent"])),
        "rotate": draw(st.booleans()),
        "block": 1 << draw(st.integers(6, 12)),
        "seed": draw(SEEDS),
        "widths": draw(st.sampled_from(["energy", "fixed", (0, bits, 8), (0, 1, bits)])),
        "energy": draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 0.3])),
        "feedback": draw(st.booleans()),
    }


@st.composite
def sparse_options(draw: st.DrawFn) -> Options:
    block = draw(st.sampled_from([None, 64, 4096]))
    return {"workers": draw(st.integers(1, 40)), "block": block, "seed": draw(SEEDS)}


@st.composite
def sketch_options(draw: st.DrawFn) -> Options:
    block = draw(st.sampled_from([None, 1, 64]))
    rows = draw(st.sampled_from([1.0, 1.3, 1.5, 2.0, 64.0, 0.01]))
    return {"workers": draw(st.integers(1, 40)), "block": block, "seed": draw(SEEDS), "rows_per_nonzero": rows}


KINDS = st.one_of(
    st.tuples(st.just(Lattice), lattice_options()),
    st.tuples(st.just(Sparse), sparse_options()),
    st.tuples(st.just(Sketch), sketch_options()),
)


def equals(value: Any) -> list[Any]:
    """Values that Python holds equal to an option."""
    if isinstance(value, bool):
        return [value, int(value), np.bool_(value), np.int64(value)]
    if isinstance(value, int):
        return [value, np.uint64(value), np.array(value, np.uint64), IntEnum("Number", {"N": value}).N]
    if isinstance(value, float):
        exact = [np.float32(value)] if float(np.float32(value)) == value else []
        whole = [int(value), np.int64(value)] if value.is_integer() else []
        return [value, np.float64(value), Fraction(value), *exact, *whole, *([-value] if value == 0 else [])]
    if isinstance(value, str):
        return [value, np.str_(value), Spelled(value)]
    if isinstance(value, tuple):
        return [
            value,
            list(value),
            value[::-1],
            set(value),
            np.array(value),
            (*value, value[-1]),
            tuple(map(np.int8, value)),
        ]
    return [value]


def as_floats(value: int) -> list[Any]:
    return [float(value), np.float64(value), np.float32(value), Fraction(value), bool(value), np.True_]


@given(kind=KINDS, data=st.data())
def test_equal_options_make_one_codec_in_any_order(kind: tuple[type[Codec], Options], data: st.DataObject) -> None:
    cls, options = kind
    odd_options = {name: data.draw(st.sampled_from(equals(value)), label=name) for name, value in options.items()}
    if data.draw(st.booleans(), label="odd first"):
        odd = cls(**odd_options)
        name = odd.family
        plain = cls(**options)
    else:
        plain = cls(**options)
        name = plain.family
        odd = cls(**odd_options)
    assert odd == plain
    assert hash(odd) == hash(plain)
    assert name == odd.family == plain.family
    assert repr(odd) == repr(plain)
    for field in fields(plain):  # type: ignore[arg-type]
        assert type(getattr(odd, field.name)) is type(getattr(plain, field.name)), field.name
    for copied in (pickle.loads(pickle.dumps(odd)), build(describe(odd))):  # type: ignore[arg-type]
        assert copied == plain
        assert (copied.family, repr(copied)) == (name, repr(plain))
    assert describe(odd) == describe(plain)  # type: ignore[arg-type]


@given(kind=KINDS, data=st.data())
def test_whole_numbers_of_no_integer_type_are_refused_by_name(
    kind: tuple[type[Codec], Options], data: st.DataObject
) -> None:
    cls, options = kind
    name = data.draw(st.sampled_from([n for n, value in options.items() if type(value) is int]))
    wrong = data.draw(st.sampled_from(as_floats(options[name])))
    with pytest.raises(ConfigError, match=f"{name}=.* is not a whole number"):
        cls(**(options | {name: wrong}))


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (Lattice, ["workers", "block", "seed", "table", "rounding", "rotate", "widths", "energy", "feedback"]),
        (Sparse, ["workers", "seed"]),
        (Sketch, ["workers", "seed", "rows_per_nonzero"]),
    ],
)
def test_none_is_refused_where_it_means_nothing(cls: type[Codec], options: list[str]) -> None:
    for name in options:
        with pytest.raises(ConfigError, match=f"{name}=None is not"):
            cls(**({"workers": 4} | {name: None}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotate": 1.0}, "rotate=1.0 is not True or False"),
        ({"rotate": 2}, "rotate=2 is not True or False"),
        ({"feedback": "True"}, "feedback='True' is not True or False"),
        ({"feedback": np.ones(2)}, "feedback=.* is not True or False"),
        ({"table": 1}, "table=1 is not 'optimal' or 'uniform'"),
        ({"energy": 10**400}, "energy=1000.* is not a number in 0..2"),
        ({"energy": float("nan")}, "energy=nan is not a number in 0..2"),
        ({"energy": np.float32(2.1)}, "energy=.* is not a number in 0..2"),
        ({"clip": Fraction(1, 10**400)}, "clip=.* is not a number in 1e-12..0.5"),
        ({"energy": 1j}, "energy=1j is not a number"),
    ],
)
def test_options_of_other_kinds_are_refused(options: Options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lattice(4, **options)


def test_a_float32_just_below_the_limit_is_refused_as_its_float_would_be() -> None:
    with pytest.raises(ConfigError, match="rows_per_nonzero=.* is not a number in 0.01..64"):
        Sketch(4, rows_per_nonzero=np.float32(0.01))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Lattice.thc, Lattice.uniform])
def test_the_papers_settings_take_any_integers(make: Any) -> None:
    assert make(np.int8(100), np.int8(4)) == make(100, 4)
    for workers, bits, message in [(4, 4.0, "bits=4.0"), (4, -1, "bits=-1"), (4, 9, "bits=9"), (4.5, 4, "workers=4.5")]:
        with pytest.raises(ConfigError, match=f"{message} is not"):
            make(workers, bits)
