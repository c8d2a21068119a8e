"""A step's figures under the names that a dashboard shows, and where to send them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sumwire.aggregate.statistics import Statistics
from sumwire.errors import ConfigError

Log: TypeAlias = Callable[[str, float, int], object]
"""log(name, value, step)."""


def scalars(statistics: Statistics) -> dict[str, float]:
    """Figures of one step at this rank; `sumwire/nmse` only where the step was sampled.

    `sumwire/bits_per_value` is what this rank sent per gradient value, payloads to owners and sums to all: with b-bit
    payloads and w-bit sums about (n-1)/n (b + w), so 4.6 at 2 ranks and 7.7 at 4 with 4 bits, where a ring of fp32
    sends 32 and 48. docs/training.md has the formula with terms, exact tensors, FSDP2 and servers.
    """
    found = {
        "sumwire/bits_per_value": statistics.bits_per_value,
        "sumwire/sent_bytes": float(statistics.sent),
        "sumwire/saved_bytes": float(statistics.plain_sent - statistics.sent),
    }
    found |= {f"sumwire/{kind}_seconds": seconds for kind, seconds in statistics.seconds.items()}
    if statistics.nmse is not None:
        found["sumwire/nmse"] = statistics.nmse
    return found


def logger(log: Any) -> Log | None:
    """What was passed as `log`: nothing, a callable, or a TensorBoard SummaryWriter."""
    if log is None:
        return None
    if hasattr(log, "add_scalar"):
        add: Log = log.add_scalar
        return add
    if callable(log):
        call: Log = log
        return call
    raise ConfigError(
        f"log={log!r} is neither a callable (name, value, step) nor has it add_scalar, as TensorBoard's writer has"
    )
