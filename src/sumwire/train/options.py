"""From the few options of `attach` to a codec. docs/training.md has the evidence for the defaults."""

from __future__ import annotations

from typing import Any, NamedTuple

from sumwire.aggregate.group.cost import Algorithm
from sumwire.codec.base import Codec
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.sparse.codec import Sparse
from sumwire.errors import ConfigError

BITS = 4
ENERGY = 0.5
FEEDBACK = False

CODECS = ("lattice", "sparse", "auto")


class Choice(NamedTuple):
    """What gradients are averaged with."""

    codec: Lattice | Sparse
    feedback: bool
    """Whether residuals are kept."""
    algorithm: Algorithm | None
    """How rounds go whose way is not known; None: as the collective thinks best."""


def choose(
    workers: int,
    *,
    bits: int | None,
    total_bits: int | None,
    codec: str | Codec | None,
    feedback: bool | None,
    energy: float | None,
    seed: int | None,
) -> Choice:
    """The codec for so many workers, by name or given, and how it is used."""
    if isinstance(codec, str) and codec not in CODECS:
        raise ConfigError(f"codec={codec!r} is not one of {', '.join(CODECS)}, nor a Lattice or Sparse")
    if codec == "sparse" or isinstance(codec, Sparse):
        _refuse(
            "a Sparse codec, which loses nothing",
            bits=bits,
            total_bits=total_bits,
            energy=energy,
            feedback=feedback or None,
        )
        return Choice(codec if isinstance(codec, Sparse) else Sparse(workers, seed=seed or 0), False, None)
    if codec == "auto":
        _refuse('codec="auto", which may choose a codec that loses nothing', feedback=feedback or None)
    given = None if isinstance(codec, str) else codec
    lattice, keep = build_codec(
        workers, bits=bits, total_bits=total_bits, codec=given, feedback=feedback, energy=energy, seed=seed
    )
    return Choice(lattice, keep, "probe" if codec == "auto" else None)


def build_codec(
    workers: int,
    *,
    bits: int | None,
    total_bits: int | None,
    codec: Codec | None,
    feedback: bool | None,
    energy: float | None,
    seed: int | None,
) -> tuple[Lattice, bool]:
    """The lattice for so many workers, and whether residuals are kept."""
    if codec is not None:
        if not isinstance(codec, Lattice):
            raise ConfigError(f"codec={codec!r} is not a Lattice, and nothing else works here")
        _refuse("a codec that has its own", bits=bits, total_bits=total_bits, energy=energy)
        return codec, codec.feedback if feedback is None else feedback
    keep = FEEDBACK if feedback is None else feedback
    # Even tables have the narrowest sums. Between peers those cost as much as payloads: at 4 ranks, 4 up and 6 down
    # with an even table make 14 % more error than 4 up and 8 down with the best one, for 17 % fewer bytes.
    budget: dict[str, Any] = {"bits": BITS, "table": "uniform"}
    if total_bits is not None:
        budget = {"total_bits": total_bits}
    if bits is not None:
        budget["bits"] = bits
    energy = ENERGY if energy is None else energy
    chosen = Lattice(workers, energy=energy, seed=seed or 0, feedback=keep, **budget)
    return chosen, keep


def _refuse(beside: str, **options: object) -> None:
    """Refuse options that have no meaning beside another."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} has no meaning beside {beside}: drop one of them")
