"""From the few options of `attach` to a codec. docs/training.md has the evidence for the defaults."""

from __future__ import annotations

from typing import Any

from sumwire.codec.lattice import Lattice
from sumwire.errors import ConfigError

BITS = 4
ENERGY = 1.0
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
    budget: dict[str, Any] = {"total_bits": total_bits} if total_bits is not None else {"bits": BITS}
    if bits is not None:
        budget["bits"] = bits
    chosen = Lattice(workers, energy=ENERGY if energy is None else energy, seed=seed, feedback=keep, **budget)
    return chosen, keep
