"""Options of codecs as plain Python values: whatever equals them gives the same codec, by name, repr and bytes.

Names and caches of codecs are keyed by their options, and Python holds 1, True, 1.0 and np.int64(1) equal although they
print differently. So every option gets its canonical type before anything is made of it, or an error that names it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from sumwire.errors import ConfigError


def real_number(name: str, value: object, low: float, high: float) -> float:
    """A plain float in low..high of any real number.

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
    """A plain bool of True, False, NumPy's own, 1 or 0.

    >>> switch("rotate", 1), switch("rotate", np.False_)
    (True, False)
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, numbers.Integral) and value in (0, 1)):
        return bool(value)
    raise ConfigError(f"{name}={value!r} is not True or False")


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """The one of these strings that it equals: a member of an enumeration may, and prints otherwise.

    >>> choice("table", np.str_("uniform"), ["optimal", "uniform"])
    'uniform'
    """
    if isinstance(value, str) and value in choices:
        return choices[choices.index(value)]
    raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
