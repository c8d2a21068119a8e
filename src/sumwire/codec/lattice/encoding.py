"""From values to indices: measure blocks, scale them to capped terms, quantize; errors for what cannot be encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Floats, Terms
from sumwire.codec.lattice.decoding import keys
from sumwire.codec.lattice.parts import LatticePayload
from sumwire.codec.lattice.terms import LARGEST_SCALE, LatticeTerms, own_terms
from sumwire.codec.options import same
from sumwire.codec.tensors import Tensor, buffer, flatten
from sumwire.errors import MismatchError, NonFiniteError, RangeError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.arrays import to_float32

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice


def measure(codec: Lattice, x: Tensor) -> LatticeTerms:
    """See `Lattice.propose`."""
    flat, shape = flatten(x)
    scales = np.empty(codec.blocks(flat.size), np.float32)
    kernels.measure(flat, codec.scheme, scales)
    if not bool((scales <= LARGEST_SCALE).all()):  # NaN compares false
        refuse_values(flat, scales, codec.block)
    return LatticeTerms(codec, shape, scales)


def encode(
    codec: Lattice, x: Tensor, terms: Terms, rank: int, round_id: int, out: Bytes | None, residual: Floats | None
) -> LatticePayload:
    """See `Lattice.encode`; what the payload does not hold goes into `residual`, if given."""
    flat, shape = flatten(x)
    mine = own_terms(codec, terms)
    same("shape", shape, mine.shape, "encode under these terms")
    rank, round_id = codec.check_rank(rank, round_id)
    layout = mine.layout(codec)
    data = buffer(out, layout.payload_bytes, np.uint8, flat)
    streams = keys(codec.seed, round_id, rank, codec.workers, codec.rounding == "stratified")
    bad = kernels.encode(codec.scheme, flat, mine.scales, layout.classes, layout.widths, streams, data, residual)
    if bad >= 0:
        refuse_block(flat, mine, bad)
    return LatticePayload(codec, mine, round_id, rank, data, layout.widths, 0, len(layout.widths))


def fit(codec: Lattice, x: Tensor, terms: Terms) -> Floats:
    """See `Lattice.fit`."""
    mine, own = own_terms(codec, terms), codec.propose(x)
    flat, shape = flatten(x)
    same("shape", shape, mine.shape, "fit to these terms")
    over = own.scales > mine.scales
    if not over.any():
        return to_float32(flat).reshape(shape)
    # A little less than the ratio, whose product may be rounded upwards.
    shrink = np.where(over, mine.scales / np.maximum(own.scales, np.finfo(np.float32).tiny) * (1 - 2**-20), 1)
    return (to_float32(flat) * np.repeat(shrink.astype(np.float32), mine.sizes)).reshape(shape)


def refuse_non_finite(flat: NDArray[np.generic]) -> None:
    """Raise `NonFiniteError` if any value of a tensor is not a finite float32, and say which."""
    values = _float64(flat)
    bad = np.flatnonzero(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(bad):
        raise NonFiniteError(
            f"{len(bad)} of {flat.size} values are NaN, Inf or beyond float32, the first "
            f"({values[bad[0]]}) at flat index {bad[0]}; nothing was encoded: skip this step or clip it",
            index=int(bad[0]),
            count=len(bad),
        )


def refuse_values(flat: NDArray[np.generic], scales: NDArray[np.float32], block: int) -> NoReturn:
    """Raise an error that says what is wrong with a tensor that cannot be encoded."""
    refuse_non_finite(flat)
    worst = int(scales.argmax())
    raise RangeError(
        f"block {worst} (from flat index {worst * block}) has rms {scales[worst]:.3g}; the limit is "
        f"{LARGEST_SCALE:.3g}, so that a decoded mean fits float32: scale the tensor down"
    )


def refuse_block(flat: NDArray[np.generic], terms: LatticeTerms, block: int) -> NoReturn:
    """Raise an error that says why a block does not fit its terms."""
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
