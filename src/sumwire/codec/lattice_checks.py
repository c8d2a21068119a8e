"""What Lattice refuses, and how it says so: options that make no codec, tensors it cannot encode."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from sumwire.codec import family as families
from sumwire.codec.base import MAX_WORKERS, whole_number
from sumwire.codec.rotation import log2_block
from sumwire.errors import ConfigError, MismatchError, NonFiniteError, RangeError
from sumwire.kernels.scheme import MAX_BITS

if TYPE_CHECKING:
    from sumwire.codec.lattice import Lattice
    from sumwire.codec.lattice_parts import LatticeTerms

MIN_BLOCK = 64
LARGEST_SCALE = np.float32(2.0**115)
"""Blocks with a larger rms could decode to more than float32 holds."""


def check_options(codec: Lattice) -> None:
    """Refuse options that make no codec, naming the limit."""
    if not 1 <= codec.workers <= MAX_WORKERS:
        raise ConfigError(f"workers={codec.workers} is not in 1..{MAX_WORKERS}")
    if codec.total_bits is not None and codec.bits:
        raise ConfigError("give bits or total_bits, not both: total_bits lets the solver choose bits")
    if codec.total_bits is not None and (codec.lane_bits is not None or codec.granularity is not None):
        raise ConfigError("total_bits chooses lane_bits and granularity itself: leave them out")
    if codec.bits and not 1 <= codec.bits <= MAX_BITS:
        raise ConfigError(f"bits={codec.bits} is not in 1..{MAX_BITS}")
    bits = codec.family_bits or codec.bits or 4
    if codec.granularity is not None and not (1 << bits) - 1 <= codec.granularity <= 4095:
        raise ConfigError(f"granularity={codec.granularity} is not in {(1 << bits) - 1}..4095 for bits={bits}")
    if codec.clip is not None and not 0.0 < codec.clip <= 0.5:
        raise ConfigError(f"clip={codec.clip} is not in 0..0.5: it is the share of coordinates outside the range")
    if codec.table not in ("optimal", "uniform"):
        raise ConfigError(f"table={codec.table!r} is not 'optimal' or 'uniform'")
    if codec.rounding not in ("stratified", "independent"):
        raise ConfigError(f"rounding={codec.rounding!r} is not 'stratified' or 'independent'")
    if not 0 <= codec.seed < 1 << 64:
        raise ConfigError(f"seed={codec.seed} is not in 0..2**64-1")
    if codec.lane_bits is not None and not 1 <= codec.lane_bits <= families.MAX_LANE_BITS:
        raise ConfigError(f"lane_bits={codec.lane_bits} is not in 1..{families.MAX_LANE_BITS}")
    if not 0.0 <= codec.energy <= 2.0:
        raise ConfigError(f"energy={codec.energy} is not in 0..2: 1 is least squared error, 0 one width for all")
    if isinstance(codec.widths, tuple):
        allowed = sorted({whole_number("widths", width) for width in codec.widths} - {0})
        if not allowed or allowed[0] < 1 or allowed[-1] > MAX_BITS:
            raise ConfigError(f"widths={codec.widths} must hold widths in 0..{MAX_BITS}, at least one above 0")
        if bits not in allowed:
            raise ConfigError(f"bits={bits} is not among widths={codec.widths}: its lattice must exist")
    elif codec.widths not in ("energy", "fixed"):
        raise ConfigError(f"widths={codec.widths!r} is not 'energy', 'fixed' or a tuple of widths")
    log2_block(codec.block, MIN_BLOCK)


def refuse_values(flat: NDArray[np.generic], scales: NDArray[np.float32], block: int) -> NoReturn:
    """Say what is wrong with a tensor that cannot be encoded."""
    values = _float64(flat)
    bad = np.flatnonzero(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(bad):
        raise NonFiniteError(
            f"{len(bad)} of {flat.size} values are NaN, Inf or beyond float32, the first "
            f"({values[bad[0]]}) at flat index {bad[0]}; nothing was encoded: skip this step or clip it",
            index=int(bad[0]),
            count=len(bad),
        )
    worst = int(scales.argmax())
    raise RangeError(
        f"block {worst} (from flat index {worst * block}) has rms {scales[worst]:.3g}; the limit is "
        f"{LARGEST_SCALE:.3g}, so that a decoded mean fits float32: scale the tensor down"
    )


def refuse_block(flat: NDArray[np.generic], terms: LatticeTerms, block: int) -> NoReturn:
    """Say why a block does not fit its terms."""
    start, stop = terms.span(block)
    values = np.abs(_float64(flat[start:stop]))
    if not bool((values <= np.finfo(np.float32).max).all()):
        refuse_values(flat, terms.scales, terms.codec.block)
    raise MismatchError(
        f"the terms do not cover x: block {block} (coordinates {start}..{stop - 1}) has rms "
        f"{np.sqrt(np.mean(values**2)):.3g}, the terms allow {terms.scales[block]:.3g}; "
        "join this tensor's own terms before encoding"
    )


def _float64(flat: NDArray[np.generic]) -> NDArray[np.float64]:
    """Values as float64, for messages."""
    if flat.dtype == np.uint16:  # bfloat16
        return (flat.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return flat.astype(np.float64)
