"""How much of the time exchanges take, and what to change: measured on the link that is there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

SHARE = 0.1
"""Of the time: above, a plan says how many steps would bring it down to this."""


@dataclass(frozen=True)
class Plan:
    """What one exchange took, and what the steps between two."""

    round_seconds: float
    """From its begin to its end."""
    waited: float
    """Of these, seconds in which training stood still."""
    cycle_seconds: float
    """From the end of an exchange to the end of the next."""
    steps: int
    """Inner steps in that time."""
    sent: int
    """Bytes that this worker sent."""

    @property
    def share(self) -> float:
        """Of the time, in which training stood still."""
        return self.waited / self.cycle_seconds if self.cycle_seconds > 0 else 0.0

    @property
    def wasteful(self) -> bool:
        """Whether exchanges should be fewer, or smaller."""
        return self.share > SHARE

    def sentence(self) -> str:
        """
        >>> print(Plan(3.2, 3.2, 12.8, 30, 1_300_000).sentence())
        a round takes 3.2 s on this link, 25 % of the time (30 steps take 9.6 s, 1.3 MB sent); every=90: 10 %
        >>> print(Plan(3.2, 0.0, 10.0, 30, 1_300_000).sentence())
        a round takes 3.2 s on this link, 0 % of the time (30 steps take 10.0 s, 1.3 MB sent)
        """
        inner = self.cycle_seconds - self.waited
        line = (
            f"a round takes {self.round_seconds:.1f} s on this link, {self.share:.0%} of the time "
            f"({self.steps} steps take {inner:.1f} s, {self.sent / 1e6:.1f} MB sent)"
        ).replace("%", " %", 1)
        if self.wasteful and inner > 0:
            every = math.ceil(self.steps * self.waited * (1 - SHARE) / SHARE / inner)
            line += f"; every={every}: {100 * SHARE:.0f} %"
        return line


class Planner:
    """Times exchanges as they end."""

    def __init__(self) -> None:
        self.last: Plan | None = None
        self._ended: tuple[float, int] | None = None

    def ended(self, round_seconds: float, waited: float, step: int, sent: int) -> Plan | None:
        """An exchange has ended after an inner step; None for the first, before which nothing was timed."""
        now = perf_counter()
        before, self._ended = self._ended, (now, step)
        if before is None:
            return None
        self.last = Plan(round_seconds, waited, now - before[0], step - before[1], sent)
        return self.last
