"""Every scheme, with several numbers of levels or bits."""

from __future__ import annotations

from dataclasses import dataclass

from sumwire import Lattice
from sumwire.dme import (
    Correlated,
    Drive,
    Eden,
    MeanScheme,
    Rotated,
    Sampled,
    StochasticBinary,
    StochasticLevels,
    VariableLength,
)

GROUP = 16
"""Clients that `Correlated` orders: its cost grows with their number."""


@dataclass(frozen=True)
class Entry:
    """A scheme, its name in tables, and its line in figures."""

    label: str
    family: str
    scheme: MeanScheme | Lattice


def all_schemes(clients: int, seed: int = 0) -> list[Entry]:
    """All schemes for a number of clients, by family and then from few bits to many."""
    return [
        Entry("StochasticBinary()", "StochasticLevels", StochasticBinary(seed=seed)),
        *(Entry(f"StochasticLevels({k})", "StochasticLevels", StochasticLevels(k, seed=seed)) for k in (4, 8, 16, 32)),
        *(Entry(f"Rotated({k})", "Rotated", Rotated(k, seed=seed)) for k in (2, 4, 8, 16, 32)),
        *(Entry(f"VariableLength({k})", "VariableLength", VariableLength(k, seed=seed)) for k in (16, 32)),
        Entry('VariableLength("sqrt")', "VariableLength", VariableLength(seed=seed)),
        Entry("Sampled(Rotated(16), .5)", "Sampled", Sampled(Rotated(16, seed=seed), 0.5, seed=seed)),
        *(
            Entry(f"Correlated({k})", "Correlated", Correlated(k, workers=min(clients, GROUP), seed=seed))
            for k in (4, 16)
        ),
        Entry("Drive()", "Eden", Drive(seed=seed)),
        *(Entry(f"Eden({bits})", "Eden", Eden(bits, seed=seed)) for bits in (2, 3, 4)),
        *(Entry(f"Lattice(n, {bits})", "Lattice", Lattice(clients, bits, seed=seed)) for bits in (2, 3, 4)),
    ]
