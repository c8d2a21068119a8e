"""From a codec's options to numbers: the lattice of each width class, the table of each width, and the error to expect.

A *width class* 0..8 is what the joined terms give a block. It fixes the block's lattice (range,
granularity, lane width), so payloads onto it add; a worker with a smaller budget picks a smaller
table onto the same lattice.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import astuple, dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from sumwire.codec.lattice import clamping
from sumwire.codec.lattice import table as tables
from sumwire.errors import ConfigError
from sumwire.kernels.lattice.scheme import MAX_BITS, LatticeSpec, Scheme, TableSpec

if TYPE_CHECKING:
    from sumwire.codec.lattice.definition import LatticeDefinition

SMALL_LATTICE = 63
"""Lattices up to this size are looked up by vector shuffles. Wider indices get an even table."""

FINER = 4
"""Default lattices are this many times finer than the table's even one, where that stays small."""

MAX_LANE_BITS = 32

_SIGMAS = 8.0
"""Standard deviations that int16 rotations leave room for. By Hoeffding, a coordinate wraps with
probability below 2 exp(-32) = 3e-14 over the random signs, and is then off by no more than its own
size plus the range."""

_ADDED = 0.01
"""Dither may add this much to the rounding error before the rotation runs in int32 instead."""


@dataclass(frozen=True)
class FamilyOptions:
    """What all workers of a family share. Equal options, equal families: its repr is part of the family's name."""

    workers: int
    budget: int
    """Index bits per coordinate, on average."""
    bits: int
    """The width class to which lane_bits and granularity refer."""
    lane_bits: int | None
    granularity: int | None
    clip: float | None
    even: bool
    stratified: bool
    rotate: bool
    log_block: int
    seed: int
    ladder: tuple[int, ...]
    restricted: bool
    """Members with fewer bits may use the ladder's widths only."""
    energy: int
    floor: int
    unbiased: bool
    """Blocks are corrected for what clamping takes from them."""
    byte_terms: bool
    """Scales are rounded up to eighths of an octave."""


@dataclass(frozen=True, eq=False)
class Family:
    """A scheme with its name."""

    options: FamilyOptions
    scheme: Scheme
    name: str
    headroom: int

    @cached_property
    def scheme_for_all(self) -> Scheme:
        """The same scheme with the tables of members that spend fewer bits, solved when needed."""
        whole, options = self.scheme, self.options
        widths = options.ladder if options.restricted else range(MAX_BITS + 1)
        specs = {
            (cls, width): TableSpec.of(_table(options, width, spec.granularity, spec.clip))
            for cls, spec in enumerate(whole.lattices)
            if spec is not None
            for width in widths
            if 0 < width <= cls
        }
        return Scheme(whole.log_block, whole.rotate, whole.lattices, specs)


@lru_cache(maxsize=256)
def build(options: FamilyOptions) -> Family:
    """Solve every lattice and table of a family. Takes milliseconds the first time, then is cached."""
    lattices: list[LatticeSpec | None] = [None]
    specs: dict[tuple[int, int], TableSpec] = {}
    for width in range(1, MAX_BITS + 1):
        if width not in options.ladder:
            lattices.append(None)
            continue
        lattice = _lattice(options, width)
        lattices.append(lattice)
        specs[width, width] = TableSpec.of(_table(options, width, lattice.granularity, lattice.clip))
    scheme = Scheme(options.log_block, options.rotate, tuple(lattices), specs)
    shape = [(width, astuple(lattice)) for width, lattice in enumerate(lattices) if lattice]
    entries = [(key, spec.values.tolist()) for key, spec in sorted(specs.items())]
    # The solved numbers are part of the name: should two platforms ever disagree, their payloads refuse to add.
    text = repr((options, shape, entries)).encode()
    name = "lattice-" + hashlib.blake2b(text, digest_size=8).hexdigest()
    room = min(((1 << s.lane_bits) - 1) // s.granularity for s in lattices if s is not None)
    return Family(options, scheme, name, room)


def _table(options: FamilyOptions, width: int, granularity: int, clip: float) -> tuple[int, ...]:
    if options.even or not options.rotate:
        return tables.uniform(width, granularity)
    return tables.solve(width, granularity, clip)


def _granularity(options: FamilyOptions, width: int) -> int:
    """The lattice of a width class: as asked for, or as fine as its lanes allow."""
    least = (1 << width) - 1
    if options.granularity is not None:
        if width == options.bits:
            return options.granularity
        fits = ((options.granularity + 1) << width >> options.bits) - 1
    elif options.lane_bits is not None:
        lane = options.lane_bits + width - options.bits
        fits = ((1 << lane) - 1) // options.workers if lane > 0 else 0
    else:
        return finest(options.workers, width, options.even)
    return least if options.even else looked_up(width, fits)


def finest(workers: int, width: int, even: bool) -> int:
    """The granularity of a width class if no option decides: fine enough, and then as fine as its lanes allow."""
    least = (1 << width) - 1
    if even:
        return least
    wanted = max(min(FINER << width, SMALL_LATTICE + 1) - 1, least)
    return looked_up(width, ((1 << (workers * wanted).bit_length()) - 1) // workers)


def looked_up(width: int, granularity: int) -> int:
    """The finest lattice up to this one that is looked up by vector shuffles; the even one beyond."""
    least = (1 << width) - 1
    return max(least, min(granularity, SMALL_LATTICE)) if 2 <= width <= 5 else least


def _lattice(options: FamilyOptions, width: int) -> LatticeSpec:
    granularity = _granularity(options, width)
    even = options.even or granularity == (1 << width) - 1
    if not options.rotate:
        clip = 1.0
    elif options.clip is not None:
        clip = tables.on_raster(tables.clip_for(options.clip))
    else:
        clip = _best_clip(options, width, granularity, even)
    lane_bits = (options.workers * granularity).bit_length()
    if options.lane_bits is not None:
        lane_bits = max(lane_bits, min(options.lane_bits + width - options.bits, MAX_LANE_BITS))
    if lane_bits > MAX_LANE_BITS:
        raise ConfigError(
            f"lanes of {lane_bits} bits would be needed for workers={options.workers} and "
            f"granularity={granularity}; the limit is {MAX_LANE_BITS}: use fewer bits or a coarser lattice"
        )
    values = _table(options, width, granularity, clip)
    corrected = options.unbiased and clamping.inside(clip) <= 1.0 - clamping.LEAST_LOSS
    shrink = tables.on_raster(clamping.inside(clip)) if corrected else 1.0
    fraction, rotation = _fraction_bits(options, granularity, clip, shrink, values, even)
    plain = LatticeSpec(granularity, fraction, rotation, clip, lane_bits, shrink)
    return replace(plain, corrections=clamping.corrections(clip)) if corrected else plain


def _best_clip(options: FamilyOptions, width: int, granularity: int, even: bool) -> float:
    best = tables.best_clip(width, granularity, options.workers, options.stratified, even, options.unbiased)
    up = clamping.ROUNDED_UP if options.byte_terms else 1.0
    if not options.unbiased:
        return tables.on_raster(best / up)
    # A worker's own scale is below the joined one even where gradients are alike, which widens its range.
    joined = clamping.largest_scale(options.workers, 0.5, 1 << options.log_block) * up
    return tables.on_raster(clamping.nominal_range(best, joined))


def _fraction_bits(
    options: FamilyOptions, granularity: int, clip: float, shrink: float, values: tuple[int, ...], even: bool
) -> tuple[int, int]:
    """Fraction bits of a lattice step, and whether the rotation runs in int16 or int32."""
    # Half the lattice is `clip` standard deviations (all of it when nothing rotates).
    sigma = granularity / (2.0 * clip)
    # Positions count from the bottom of the range, so half of it comes on top, before the correction shrinks it.
    room = (1 << 15) / ((_SIGMAS + clip / shrink) * sigma) if options.rotate else (1 << 15) / (granularity + 1)
    fraction = min(10 if even else 8, math.floor(math.log2(room)))
    mixed = (1 << options.log_block) if options.rotate else 1
    dither = mixed / 6.0 / (sigma * 2.0**fraction) ** 2
    if fraction >= 1 and dither <= _ADDED * max(tables.rounding_error(values, clip), 1e-12):
        return fraction, 16
    # The dithered input keeps 8 more bits below the unit: all must stay within int32.
    room = (1 << 22) / granularity if not options.rotate else (1 << 22) / sigma
    return min(15, math.floor(math.log2(room))), 32


def predicted_nmse(codec: LatticeDefinition, correlation: float) -> float:
    """See `Lattice.predicted_nmse`."""
    if not 0.0 <= correlation <= 1.0:
        raise ConfigError(f"correlation={correlation} is not in 0..1")
    if not codec.rotate:
        raise ConfigError("without rotation the error depends on the tensor: nothing can be predicted")
    width_class, width = codec.nominal_width(codec.family_bits), codec.nominal_width(codec.bits)
    clip, dither = codec.nominal_lattice.clip, dither_error(codec.scheme, width_class)
    joined = clamping.largest_scale(codec.workers, correlation, codec.block)
    joined *= clamping.ROUNDED_UP if codec.byte_terms else 1.0
    if codec.corrects:
        clip = clamping.effective_range(clip, joined)
        dither *= (joined / clamping.inside(clip)) ** 2
    else:
        clip *= joined
        dither *= joined**2
    error = tables.mean_error(
        tuple(codec.scheme.tables[width_class, width].values.tolist()),
        clip,
        codec.workers,
        correlation=correlation,
        stratified=codec.rounding == "stratified",
        unbiased=codec.corrects,
    )
    error += dither / codec.workers
    return error / tables.mean_power(codec.workers, correlation)


def dither_error(scheme: Scheme, width: int) -> float:
    """Squared error per coordinate, relative to scale^2, of rounding the rotation's input to integers."""
    lattice = scheme.lattices[width]
    assert lattice is not None
    size = 1 << scheme.log_block
    units = lattice.encode_gain / (1 << lattice.dither_bits) / scheme.root(size)
    return 1.0 / 6.0 / units**2
