"""The best of what rounds have found: estimates are noisy, so that the last one need not be it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Best(Generic[T]):
    """Keeps what cost least, and tells when rounds stop paying.

    A round pays if it lowers the least cost by more than `tol` of it. After `patience` rounds in a row that did not,
    `offer` answers False.

    >>> best = Best(tol=0.01, patience=2)
    >>> [best.offer(cost, name) for cost, name in [(10, "a"), (9, "b"), (9.5, "c"), (8.99, "d")]]
    [True, True, True, False]
    >>> best.found, best.cost
    ('d', 8.99)
    """

    tol: float
    patience: int
    cost: float = field(default=math.inf, init=False)
    costs: list[float] = field(default_factory=list, init=False)
    """Of all that was offered, in order."""
    _found: list[T] = field(default_factory=list, init=False)
    _stale: int = field(default=0, init=False)

    def offer(self, cost: float, candidate: T) -> bool:
        """Take note of a candidate; whether another round is worth it."""
        self.costs.append(cost)
        self._stale = 0 if self.cost - cost > self.tol * abs(cost) else self._stale + 1
        if cost < self.cost:
            self.cost, self._found = cost, [candidate]
        return not self.settled

    @property
    def settled(self) -> bool:
        """Whether rounds had stopped paying."""
        return self._stale >= self.patience

    @property
    def found(self) -> T:
        """The candidate that cost least."""
        return self._found[0]
