"""Checks that codecs share: options as plain Python values, and things that must be the same to be merged.

Names and caches of codecs are keyed by their options, and Python holds 1, True, 1.0 and np.int64(1) equal although they
print differently. So every option gets its canonical type before anything is made of it, or an error that names it.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np

from sumwire.errors import ConfigError, MismatchError

MAX_SEED = (1 << 64) - 1


def whole_number(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """A plain int in low..high, where these are given, from any integer type (np.int64, say).

    >>> whole_number("workers", np.int64(4), 1, 10)
    4
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        limits = "" if low is None or high is None else f" in {low}..{_limit(high)}"
        raise ConfigError(f"{name}={value!r} is not a whole number{limits}: pass an int") from None
    if (low is not None and number < low) or (high is not None and number > high):
        raise ConfigError(f"{name}={number} is not in {low}..{_limit(high)}")
    return number


def rank_of(workers: int, rank: object) -> int:
    """A rank as a plain int, if a codec built for `workers` takes it.

    >>> rank_of(4, np.int64(3))
    3
    """
    own = whole_number("rank", rank)
    if not 0 <= own < workers:
        remedy = f"build it with workers>={own + 1}" if own >= 0 else "ranks count from 0"
        raise ConfigError(f"rank {own} is not in 0..{workers - 1}: the codec was built for workers={workers}; {remedy}")
    return own


def _limit(high: int | None) -> str:
    """As people write it: powers of two that have many digits."""
    if high is None or high < 1 << 31:
        return "" if high is None else str(high)
    return f"2**{high.bit_length() - 1}" if high.bit_count() == 1 else f"2**{high.bit_length()}-1"


def real_number(name: str, value: object, low: float, high: float) -> float:
    """A plain float in low..high from any real number.

    >>> real_number("energy", np.float32(0.5), 0, 2), real_number("energy", -0.0, 0, 2)
    (0.5, 0.0)
    """
    number = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an int that no float can hold
            number = float(value) + 0.0  # which makes 0.0 of -0.0
    if not low <= number <= high:
        raise ConfigError(f"{name}={value!r} is not a number in {low:g}..{high:g}: pass a float within these limits")
    return number


def switch(name: str, value: object) -> bool:
    """A plain bool from True, False, NumPy's own, 1 or 0.

    >>> switch("rotate", 1), switch("rotate", np.False_)
    (True, False)
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, numbers.Integral) and value in (0, 1)):
        return bool(value)
    raise ConfigError(f"{name}={value!r} is not True or False: pass one of them")


def one_of(name: str, value: object, choices: Sequence[str]) -> str:
    """The choice that `value` equals: a member of an enumeration may equal one, and print differently.

    >>> one_of("table", np.str_("uniform"), ["optimal", "uniform"])
    'uniform'
    """
    if isinstance(value, str) and value in choices:
        return choices[choices.index(value)]
    raise ConfigError(f"{name}={value!r} is not {' or '.join(map(repr, choices))}")


def same(what: str, mine: object, theirs: object, verb: str) -> None:
    """Refuse to merge things that differ in `what`."""
    if mine != theirs:
        raise MismatchError(f"cannot {verb}: {what} differs ({mine!r} and {theirs!r}); all workers must use the same")


# Codecs that must be the same, and the options in which they are not


def option_values(codec: Any) -> dict[str, Any]:
    """The options of a codec by name."""
    return {each.name: getattr(codec, each.name) for each in fields(codec)}


def describe_options(codec: Any) -> dict[str, Any]:
    """The kind of a codec and its options, in plain values; those of a codec within it have its name before theirs."""
    found: dict[str, Any] = {"codec": type(codec).__name__}
    for name, value in option_values(codec).items():
        if hasattr(value, "description"):
            found |= {f"{name}.{inner}": its for inner, its in value.description().items()}
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *, names: tuple[str, str] = ("one", "the other")
) -> str:
    """Names the options in which two descriptions of codecs differ, with the values of both; "" if in none.

    A description is what `Codec.description` returns: a dict of plain values, which a checkpoint can hold.

    >>> saved, here = {"codec": "Lattice", "bits": 4, "seed": 0}, {"codec": "Lattice", "bits": 3, "seed": 0}
    >>> differences(saved, here, names=("the saved state", "this one"))
    'bits: the saved state has 4, this one has 3'
    """
    known = dict.fromkeys([*first, *second])
    if first.get("codec") != second.get("codec"):  # which have other options altogether
        known = {name: None for name in known if name in ("codec", "workers")}
    absent = object()
    found = []
    for name in known:
        mine, theirs = first.get(name, absent), second.get(name, absent)
        if mine != theirs:
            values = ("none" if value is absent else value for value in (mine, theirs))
            found.append(f"{name}: " + ", ".join(f"{who} has {v}" for who, v in zip(names, values, strict=True)))
    return "; ".join(found)


def same_family(mine: Any, theirs: Any, verb: str) -> None:
    """Refuse to merge what two codecs made whose payloads do not add; names the options in which they differ."""
    if mine is theirs or mine.family == theirs.family:
        return
    why = differences(mine.description(), theirs.description())
    raise MismatchError(
        f"cannot {verb}: codec family differs ({why or 'with equal options: run the same release everywhere'}); all "
        "workers must use the same options"
    )
