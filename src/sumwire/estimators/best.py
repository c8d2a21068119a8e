"""The best result over rounds: estimates are noisy, so the last one need not be the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Best(Generic[T]):
    """Keeps the candidate of least cost, and detects convergence.

    A round makes progress if it lowers the least cost by more than `tol` of it. After `patience` rounds in a row
    without progress, `offer` returns False.

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
    """Costs of all candidates, in order."""
    _found: list[T] = field(default_factory=list, init=False)
    _stale: int = field(default=0, init=False)

    def offer(self, cost: float, candidate: T) -> bool:
        """Consider a candidate; return whether another round is worthwhile."""
        self.costs.append(cost)
        self._stale = 0 if self.cost - cost > self.tol * abs(cost) else self._stale + 1
        if cost < self.cost:
            self.cost, self._found = cost, [candidate]
        return not self.converged

    @property
    def converged(self) -> bool:
        """Whether `patience` rounds in a row made no progress."""
        return self._stale >= self.patience

    @property
    def found(self) -> T:
        """The candidate of least cost."""
        return self._found[0]
