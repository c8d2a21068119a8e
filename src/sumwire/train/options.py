"""From the few options of `attach` to a codec. docs/training.md has the evidence for the defaults."""

from __future__ import annotations

from typing import Any

from sumwire.codec.lattice import Lattice
from sumwire.errors import ConfigError

BITS = 4
ENERGY = 0.5
FEEDBACK = False


def build_codec(
    workers: int,
    *,
    bits: int | None,
    total_bits: int | None,
    codec: Lattice | None,
    feedback: bool | None,
    energy: float | None,
    seed: int,
) -> tuple[Lattice, bool]:
    """The codec for so many workers, and whether residuals are kept."""
    if codec is not None:
        if not isinstance(codec, Lattice):
            raise ConfigError(f"codec={codec!r} is not a Lattice")
        given = [n for n, v in (("bits", bits), ("total_bits", total_bits), ("energy", energy)) if v is not None]
        if given:
            raise ConfigError(f"{given[0]} and codec were both given: the codec has {given[0]} of its own")
        return codec, codec.feedback if feedback is None else feedback
    keep = FEEDBACK if feedback is None else feedback
    # Even tables have the narrowest sums. Between peers those cost as much as payloads: at 4 ranks, 4 up and 6 down
    # with an even table make 14 % more error than 4 up and 8 down with the best one, for 17 % fewer bytes.
    budget: dict[str, Any] = {"bits": BITS, "table": "uniform"}
    if total_bits is not None:
        budget = {"total_bits": total_bits}
    if bits is not None:
        budget["bits"] = bits
    chosen = Lattice(workers, energy=ENERGY if energy is None else energy, seed=seed, feedback=keep, **budget)
    return chosen, keep
