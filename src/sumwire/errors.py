"""All exceptions of Sumwire, one class per kind of failure.

All inherit from `SumwireError`, so ``except sumwire.SumwireError`` catches them all. Each also inherits from the
built-in exception that a caller would expect (`ValueError`, `TypeError`, ...).
"""

from __future__ import annotations

from collections.abc import Callable


def install_hint(extra: str) -> str:
    """How to install an extra. While Sumwire is on no package index, that is from its source tree.

    >>> install_hint("cli")
    'pip install ".[cli]" in the source tree of Sumwire'
    """
    return f'pip install ".[{extra}]" in the source tree of Sumwire'


class SumwireError(Exception):
    """Base class of all errors that Sumwire raises."""


class ConfigError(SumwireError, ValueError):
    """An option or argument is invalid; the message names it and its limits."""


class InputError(SumwireError, TypeError):
    """An argument has an unsupported type, dtype or device."""


class NonFiniteError(SumwireError, ValueError):
    """A tensor holds NaN, Inf or a float64 value beyond float32; nothing was encoded.

    Attributes
    ----------
    index : int
        Flat index of the first such value.
    count : int
        Number of such values.
    """

    def __init__(self, message: str, *, index: int, count: int) -> None:
        super().__init__(message)
        self.index = index
        self.count = count

    def __reduce__(
        self,
    ) -> tuple[
        Callable[..., NonFiniteError], tuple[str, int, int]
    ]:  # errors are pickled between processes, with their keywords
        return _non_finite, (str(self), self.index, self.count)


def _non_finite(message: str, index: int, count: int) -> NonFiniteError:
    return NonFiniteError(message, index=index, count=count)


class RangeError(SumwireError, ValueError):
    """Values are finite, but too large or too small to compute with."""


class MismatchError(SumwireError, ValueError):
    """Two things that must match (codec, round, shape, terms) do not."""


class HeadroomError(SumwireError, OverflowError):
    """One more payload would overflow a lane."""


class FrameError(SumwireError, ValueError):
    """Received bytes are not a valid frame or message."""


class RoundError(SumwireError, RuntimeError):
    """A round cannot be completed."""


class BehindError(RoundError):
    """The job has gone on without this worker, and no longer has the results that it asks for."""
