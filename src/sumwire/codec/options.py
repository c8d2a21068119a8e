"""Checks that codecs share: options as plain Python values, and things that must be the same to be merged.

Names and caches of codecs are keyed by their options, and Python holds 1, True, 1.0 and np.int64(1) equal although they
print differently. So every option gets its canonical type before anything is made of it, or an error that names it.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from contextlib import suppress

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
        raise ConfigError(f"{name}={value!r} is not a whole number") from None
    if (low is not None and number < low) or (high is not None and number > high):
        most = "2**64-1" if high == MAX_SEED else high
        raise ConfigError(f"{name}={number} is not in {low}..{most}")
    return number


def rank_and_round(workers: int, rank: object, round_id: object) -> tuple[int, int]:
    """Both as plain integers, if a codec built for `workers` takes them.

    >>> rank_and_round(4, np.int64(3), 7)
    (3, 7)
    """
    own, number = whole_number("rank", rank), whole_number("round_id", round_id)
    if not 0 <= own < workers:
        remedy = f"build it with workers>={own + 1}" if own >= 0 else "ranks count from 0"
        raise ConfigError(f"rank {own} is not in 0..{workers - 1}: the codec was built for workers={workers}; {remedy}")
    if not 0 <= number <= MAX_SEED:
        raise ConfigError(f"round_id {number} is not in 0..2**64-1")
    return own, number


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
        raise ConfigError(f"{name}={value!r} is not a number in {low:g}..{high:g}")
    return number


def switch(name: str, value: object) -> bool:
    """A plain bool from True, False, NumPy's own, 1 or 0.

    >>> switch("rotate", 1), switch("rotate", np.False_)
    (True, False)
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, numbers.Integral) and value in (0, 1)):
        return bool(value)
    raise ConfigError(f"{name}={value!r} is not True or False")


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
