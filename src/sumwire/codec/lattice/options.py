"""Options of a Lattice codec: checked, converted to plain Python values, defaults filled in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sumwire.codec.algebra import MAX_WORKERS
from sumwire.codec.lattice import family as families
from sumwire.codec.lattice.budget import split_total
from sumwire.codec.lattice.narrow import LEAST_BITS
from sumwire.codec.options import MAX_SEED, one_of, real_number, switch, whole_number
from sumwire.errors import ConfigError
from sumwire.kernels.lattice.scheme import MAX_BITS, MAX_LOG_BLOCK

if TYPE_CHECKING:
    from sumwire.codec.lattice.definition import LatticeDefinition

MIN_BLOCK = 64
MAX_GRANULARITY = 1023
LEAST_CLIP = 1e-12
MORE_DOWN = 1.125
"""Bits that sums have more than payloads by default: all workers see one error there, which nothing averages out."""

_WHOLE: dict[str, tuple[int, ...]] = {"workers": (1, MAX_WORKERS), "block": (), "seed": (0, MAX_SEED)}
"""Options with their limits, where other options do not change them."""
_WHOLE_OR_NONE: dict[str, tuple[int, ...]] = {
    "bits": (),
    "total_bits": (),
    "granularity": (),
    "lane_bits": (1, families.MAX_LANE_BITS),
    "family_bits": (),
}
_CHOICES = {"table": ("optimal", "uniform"), "rounding": ("stratified", "independent"), "terms": ("byte", "exact")}
_SWITCHES = ("rotate", "feedback", "unbiased")
_WIDTHS = ("energy", "fixed")


def resolve_options(codec: LatticeDefinition) -> dict[str, Any]:
    """A codec's options as plain Python values with defaults filled in; an error names the one that is invalid."""
    given = {name: getattr(codec, name) for name in codec.__dataclass_fields__}
    for name, limits in _WHOLE.items():
        given[name] = whole_number(name, given[name], *limits)
    for name, limits in _WHOLE_OR_NONE.items():
        if given[name] is not None:
            given[name] = whole_number(name, given[name], *limits)
    given["energy"] = real_number("energy", given["energy"], 0.0, 2.0)
    if given["clip"] is not None:
        given["clip"] = real_number("clip", given["clip"], LEAST_CLIP, 0.5)
    given["widths"] = _widths(given["widths"])
    given["down_bits"] = _down_bits(given)
    if given["terms"] is None:
        given["terms"] = "byte" if given["rotate"] else "exact"
    for name, choices in _CHOICES.items():
        given[name] = one_of(name, given[name], choices)
    for name in _SWITCHES:
        given[name] = switch(name, given[name])
    log2_block(given["block"], MIN_BLOCK)
    return given | _resolve_bits(given)


def _down_bits(given: dict[str, Any]) -> float | str | None:
    """Bits per value of narrow sums, or "exact"; None if that follows from other options."""
    value = given["down_bits"]
    if value is None:
        return None if given["rotate"] else "exact"
    if isinstance(value, str):
        return one_of("down_bits", value, ("exact",))
    if not given["rotate"]:
        raise ConfigError(f"down_bits={value!r} needs rotate=True, which makes sums Gaussian; or use 'exact'")
    return real_number("down_bits", value, LEAST_BITS, families.MAX_LANE_BITS)


def _resolve_bits(given: dict[str, Any]) -> dict[str, Any]:
    """bits, family_bits, lane_bits and down_bits, from whichever of them were given."""
    widths = given["widths"]
    allowed = [w for w in widths if w] if isinstance(widths, tuple) else list(range(1, MAX_BITS + 1))
    bits, lane_bits, down_bits = given["bits"], given["lane_bits"], given["down_bits"]
    if given["total_bits"] is not None:
        if bits is not None:
            raise ConfigError("give bits or total_bits, not both: total_bits lets the solver choose bits")
        if lane_bits is not None or given["granularity"] is not None:
            raise ConfigError("total_bits chooses lane_bits and granularity itself: omit them")
        if not isinstance(down_bits, str | None):
            raise ConfigError("give down_bits or total_bits, not both: bits=... is what total_bits leaves for payloads")
        split = split_total(
            given["workers"],
            given["total_bits"],
            allowed,
            even=given["table"] == "uniform" or not given["rotate"],
            stratified=given["rounding"] == "stratified",
            unbiased=corrects(given["unbiased"], given["rotate"], given["feedback"]),
            narrow=down_bits is None and not given["feedback"],
        )
        bits, lane_bits, down_bits = split.bits, split.lane_bits, split.down_bits
    bits = 4 if bits is None else bits
    family_bits = bits if given["family_bits"] is None else given["family_bits"]
    if down_bits is None:
        # With feedback nothing is lost: all that does not arrive is in a residual. What narrowing loses would not be.
        lanes = given["workers"] == 1 or lane_bits is not None or given["feedback"]
        down_bits = "exact" if lanes else family_bits + MORE_DOWN
    least = allowed[0] if isinstance(widths, tuple) else 1
    most = allowed[-1] if given["family_bits"] is None else min(family_bits, allowed[-1])
    if not least <= bits <= family_bits <= allowed[-1]:
        raise ConfigError(
            f"bits={bits} is not in {least}..{most}, for widths={widths!r}: choose the average bits per value within "
            "these limits, or let total_bits=... choose them"
        )
    finest = (1 << max(w for w in allowed if w <= family_bits)) - 1
    if given["granularity"] is not None and not finest <= given["granularity"] <= MAX_GRANULARITY:
        raise ConfigError(
            f"granularity={given['granularity']} is not in {finest}..{MAX_GRANULARITY} for bits={family_bits}: choose "
            "one within these limits, or omit it"
        )
    chosen = {"bits": bits, "family_bits": family_bits, "lane_bits": lane_bits, "down_bits": down_bits}
    return chosen | {"total_bits": None}


def corrects(unbiased: bool, rotate: bool, feedback: bool) -> bool:
    """Whether blocks are corrected for clamping. Feedback makes up for it itself, and needs an error below 1."""
    return unbiased and rotate and not feedback


def _widths(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str) and value in _WIDTHS:
        return one_of("widths", value, _WIDTHS)
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"widths={value!r} is not 'energy', 'fixed' or a tuple of widths")
    widths = tuple(sorted({0, *(whole_number("widths", width) for width in value)}))
    if len(widths) == 1 or widths[0] < 0 or widths[-1] > MAX_BITS:
        raise ConfigError(f"widths={value!r} must hold widths in 0..{MAX_BITS}, at least one above 0")
    return widths


def plain_integers(workers: int, bits: int) -> tuple[int, int]:
    """Both as plain integers: other options are computed from them before the codec checks all."""
    width = whole_number("bits", bits)
    if not 1 <= width <= MAX_BITS:
        raise ConfigError(f"bits={width} is not in 1..{MAX_BITS}")
    return whole_number("workers", workers), width


def log2_block(block: int, smallest: int = 1) -> int:
    """log2 of a block size, which must be a power of two within limits."""
    log_block = block.bit_length() - 1
    if block < smallest or block != 1 << log_block or log_block > MAX_LOG_BLOCK:
        raise ConfigError(f"block={block} is not a power of two in {smallest}..2**{MAX_LOG_BLOCK}")
    return log_block
