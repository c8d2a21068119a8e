"""Every way that things go wrong in Sumwire, one class each.

All inherit from `SumwireError`, so ``except sumwire.SumwireError`` catches them together. Each also
inherits from the builtin that a caller would expect (`ValueError`, `TypeError`, ...).
"""

from __future__ import annotations

from typing import Any


class SumwireError(Exception):
    """Base of every error that Sumwire raises on purpose."""


class ConfigError(SumwireError, ValueError):
    """A codec was asked for something it cannot be: the message names the option and its limits."""


class InputError(SumwireError, TypeError):
    """A tensor has a dtype or a place (a GPU, say) that the codec cannot read."""


class NonFiniteError(SumwireError, ValueError):
    """A tensor holds NaN or Inf (or a float64 beyond float32). Nothing was encoded."""

    def __init__(self, message: str, *, index: int, count: int) -> None:
        super().__init__(message)
        self.index = index
        self.count = count

    def __reduce__(self) -> tuple[Any, ...]:  # errors travel from worker processes, with their keywords
        return _non_finite, (str(self), self.index, self.count)


def _non_finite(message: str, index: int, count: int) -> NonFiniteError:
    return NonFiniteError(message, index=index, count=count)


class RangeError(SumwireError, ValueError):
    """A tensor's values are finite but so large that a decoded mean could overflow float32."""


class MismatchError(SumwireError, ValueError):
    """Two things that must belong together (codec, round, shape, terms) do not."""


class HeadroomError(SumwireError, OverflowError):
    """One more payload would wrap a lane."""


class FrameError(SumwireError, ValueError):
    """Bytes from the wire are not a valid frame."""


class RoundError(SumwireError, RuntimeError):
    """A round cannot be finished with what has arrived."""
