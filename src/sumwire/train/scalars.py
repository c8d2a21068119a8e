"""A step's figures under the names that a dashboard shows, and where to send them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from sumwire.aggregate.client import Link
from sumwire.aggregate.meter import Meter
from sumwire.errors import ConfigError, RoundError

Log: TypeAlias = Callable[[str, float, int], object]
"""log(name, value, step)."""


def scalars(meter: Meter) -> dict[str, float]:
    """Figures of one step at this rank; `sumwire/nmse` only where the step was sampled."""
    found = {
        "sumwire/bits_per_value": meter.bits_per_value,
        "sumwire/sent_bytes": float(meter.sent),
        "sumwire/saved_bytes": float(meter.plain_sent - meter.sent),
    }
    found |= {f"sumwire/{kind}_seconds": seconds for kind, seconds in meter.seconds.items()}
    if meter.nmse is not None:
        found["sumwire/nmse"] = meter.nmse
    return found


def report(meter: Meter, link: Link) -> None:
    """Tell a server the error of a step that was sampled. It is only shown: nothing fails for want of it."""
    if meter.nmse is not None and math.isfinite(meter.nmse):
        with suppress(RoundError):  # a link of the user's own may be closed before the state is
            link.report(nmse=meter.nmse)


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
