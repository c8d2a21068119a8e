"""From values to indices and from lanes to values, and the random streams and the rotation that both share.

`measure` and `encode` scale blocks to capped terms and quantize them; tensors that cannot be encoded raise an error
that says why. `decode` takes one pass, directly over packed lanes where a sum arrived in that form. `rotate` is the
seeded Hadamard transform in float32, for other schemes and to inspect rotated values: the codec itself rotates integers
inside its kernels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, DivideBy, Floats, Missing, Payload, Sum, Terms
from sumwire.codec.lattice.narrow import NarrowSum, segments_of
from sumwire.codec.lattice.options import log2_block
from sumwire.codec.lattice.parts import LatticePayload, LatticeSum, PackedLatticeSum
from sumwire.codec.lattice.terms import LatticeTerms, own_terms
from sumwire.codec.options import one_of, same, same_family
from sumwire.codec.tensors import Tensor, buffer, flatten, on_host
from sumwire.errors import InputError, MismatchError, NonFiniteError, RangeError, RoundError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.arrays import to_float32
from sumwire.kernels.lattice.blocks import starts_of
from sumwire.kernels.lattice.scales import LARGEST_SCALE
from sumwire.kernels.lattice.scheme import Keys

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice

_MASK = (1 << 64) - 1


def measure(codec: Lattice, x: Tensor) -> LatticeTerms:
    """See `Lattice.propose`."""
    flat, shape = flatten(x, on_device=True)
    scales = _own_scales(codec, flat)
    if codec.byte_terms:
        kernels.round_scales(scales)
    return LatticeTerms(codec, shape, scales)


def _own_scales(codec: Lattice, flat: NDArray[np.generic]) -> Floats:
    scales = np.empty(codec.blocks(len(flat)), np.float32)
    kernels.measure(flat, codec.scheme, scales)
    if not scales.max(initial=0) <= LARGEST_SCALE:  # NaN, which wins the maximum, compares false
        refuse_values(flat, scales, codec.block)
    return scales


def encode(
    codec: Lattice, x: Tensor, terms: Terms, rank: int, round_id: int, out: Bytes | None, residual: Floats | None
) -> LatticePayload:
    """See `Lattice.encode`; what the payload does not hold goes into `residual`, if given."""
    flat, shape = flatten(x, on_device=True)
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
    mine, (flat, shape) = own_terms(codec, terms), flatten(x)
    same("shape", shape, mine.shape, "fit to these terms")
    own = _own_scales(codec, flat)
    over = own > mine.scales
    if not over.any():
        return to_float32(flat).reshape(shape)
    # A little less than the ratio, whose product may be rounded upwards.
    shrink = np.where(over, mine.scales / np.maximum(own, np.finfo(np.float32).tiny) * (1 - 2**-20), 1)
    return (to_float32(flat) * np.repeat(shrink.astype(np.float32), mine.sizes)).reshape(shape)


def refuse_non_finite(flat: NDArray[np.generic]) -> None:
    """Raise `NonFiniteError` if any value of a tensor is not a finite float32, and say which."""
    values = _float64(on_host(flat))
    bad = np.flatnonzero(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(bad):
        raise NonFiniteError(
            f"{len(bad)} of {len(flat)} values are NaN, Inf or beyond float32, the first "
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
    values = np.abs(_float64(on_host(flat[start:stop])))
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


def decode(codec: Lattice, total: Sum | Payload, out: Floats | None, missing: Missing, divide_by: DivideBy) -> Floats:
    """See `Lattice.decode`."""
    one_of("missing", missing, ("raise", "zero"))
    one_of("divide_by", divide_by, ("count", "workers"))
    if not isinstance(total, NarrowSum | LatticeSum | PackedLatticeSum | LatticePayload):
        raise InputError(
            f"decode takes a payload or sum of a Lattice codec, not {type(total).__name__}: "
            "encode tensors, and add their payloads, with this codec"
        )
    same_family(codec, total.codec, "decode")
    if isinstance(total, NarrowSum):
        return _decode_narrow(codec, total, out, missing, divide_by)
    if isinstance(total, PackedLatticeSum):
        return _decode_packed(codec, total, out, divide_by)
    total = total if isinstance(total, LatticeSum) else codec.add([total])
    whole = total.whole()
    terms = whole.lattice_terms
    classes = terms.layout(codec).classes
    _check_arrived(whole.counts, classes, missing, divide_by)
    scales = _weighted(codec, terms.scales, whole.counts, divide_by)
    mean = buffer(out, terms.size, np.float32, whole.lanes)
    kernels.decode(
        codec.scheme, whole.lanes, whole.counts, scales, classes, sign_key(codec, whole.round_id), mean, 0, len(classes)
    )
    return mean.reshape(terms.shape)


def _check_arrived(counts: NDArray[np.int32], classes: Bytes, missing: Missing, divide_by: DivideBy) -> None:
    if missing == "zero" or divide_by == "workers" or counts.min(initial=1):
        return
    lost = np.flatnonzero((counts == 0) & (classes > 0))
    if len(lost):
        raise RoundError(
            f"nothing arrived of {len(lost)} of {len(classes)} blocks (the first is {lost[0]}): wait for "
            'more frames, or take them as zero with missing="zero"'
        )


def _weighted(codec: Lattice, scales: Floats, counts: NDArray[np.int32], divide_by: DivideBy) -> Floats:
    if divide_by == "count":
        return scales
    # A mean over the count is proportional to the scale; complete blocks keep their bits.
    return scales * (counts / np.float32(codec.workers)).astype(np.float32)


def _decode_narrow(
    codec: Lattice, total: NarrowSum, out: Floats | None, missing: Missing, divide_by: DivideBy
) -> Floats:
    terms, segments = total.lattice_terms, segments_of(total.lattice_terms, total.codec)
    classes, counts = terms.layout(codec).classes, total.counts
    partial = len(counts) < len(classes)
    if partial:
        counts = np.zeros(len(classes), np.int32)
        counts[total.lo : total.hi] = total.counts
    _check_arrived(counts, classes, missing, divide_by)
    scales = _weighted(codec, terms.scales, counts, divide_by)
    mean = buffer(out, terms.size, np.float32, *(run.data for run in total.runs))
    if partial:
        starts = starts_of(terms.sizes)
        mean[: starts[total.lo]] = 0
        mean[starts[total.hi] :] = 0
    key = sign_key(codec, total.round_id)
    for run in total.runs:
        widths = np.empty(run.hi - run.lo, np.uint8)
        kernels.narrow_widths(
            codec.scheme, terms.size, classes, terms.scales, run.coarse, segments, widths, run.lo, run.hi
        )
        kernels.decode_narrow(
            codec.scheme, run.coarse, run.fine, widths, run.data, segments, counts, scales, classes, key, mean,
            run.lo, run.hi,
        )  # fmt: skip
    return mean.reshape(terms.shape)


def _decode_packed(codec: Lattice, total: PackedLatticeSum, out: Floats | None, divide_by: DivideBy) -> Floats:
    terms = total.lattice_terms
    classes = terms.layout(codec).classes
    counts = np.full(len(classes), total.count, np.int32)
    scales = terms.scales
    if divide_by == "workers" and total.count != codec.workers:
        scales = scales * np.float32(total.count / codec.workers)
    mean = buffer(out, terms.size, np.float32, *(data for _, data in total.parts))
    key = sign_key(codec, total.round_id)
    for (lo, hi), data in total.parts:
        kernels.decode_packed(codec.scheme, data, counts, scales, classes, key, mean, lo, hi)
    return mean.reshape(terms.shape)


def decode_part(codec: Lattice, payload: Payload) -> tuple[slice, Floats]:
    """The values of a part of a payload, and where they lie in the flat tensor."""
    if not isinstance(payload, LatticePayload):
        raise InputError(
            f"a payload of a Lattice codec is needed, not a {type(payload).__name__}: pass what encode returned"
        )
    same_family(codec, payload.codec, "decode")
    terms, (lo, hi) = payload.lattice_terms, (payload.lo, payload.hi)
    total = codec.add([payload])
    assert isinstance(total, LatticeSum)
    counts = np.ones(len(terms.sizes), np.int32)
    # Of which, on the host, only the pages of this part are touched.
    out = buffer(None, terms.size, np.float32, payload.data)
    key = sign_key(codec, payload.round_id)
    kernels.decode(codec.scheme, total.lanes, counts, terms.scales, terms.layout(codec).classes, key, out, lo, hi)
    where = slice(int(terms.sizes[:lo].sum()), int(terms.sizes[:hi].sum()))
    return where, out[where]


def sign_key(codec: Lattice, round_id: int) -> int:
    """The stream of the rotation's signs, which all workers of a round share."""
    return stream_key(codec.seed, round_id, 0)


@lru_cache(maxsize=1024)
def keys(seed: int, round_id: int, rank: int, workers: int, stratified: bool) -> Keys:
    """Streams 0, 1, 2: signs (shared), rounding noise (shared when stratified), dither (never)."""
    return Keys(
        sign=stream_key(seed, round_id, 0),
        noise=stream_key(seed, round_id, 1, 0 if stratified else rank + 1),
        dither=stream_key(seed, round_id, 2, rank + 1),
        shift=rank * 65536 // workers if stratified else 0,
    )


@lru_cache(maxsize=1024)
def stream_key(seed: int, round_id: int, stream: int, rank: int = 0) -> int:
    """A 32-bit key for one stream of random numbers: splitmix64 over all four."""
    state = 0
    for word in (seed, round_id, stream, rank):
        state = (state ^ word) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 32


def rotate(x: Tensor, *, block: int = 1024, key: int = 0) -> NDArray[np.float32]:
    """Rotate every block; norms are kept up to rounding.

    >>> x = np.zeros(1024, np.float32); x[3] = 32.0
    >>> bool(np.all(np.abs(rotate(x)) == 1.0))
    True
    """
    return _apply(x, block, key, inverse=False)


def unrotate(x: Tensor, *, block: int = 1024, key: int = 0) -> NDArray[np.float32]:
    """Undo `rotate` with the same block and key.

    >>> x = np.arange(10, dtype=np.float32)
    >>> bool(np.allclose(unrotate(rotate(x)), x, atol=1e-5))
    True
    """
    return _apply(x, block, key, inverse=True)


def _apply(x: Tensor, block: int, key: int, *, inverse: bool) -> NDArray[np.float32]:
    flat, shape = flatten(x)
    if flat.dtype != np.float32:
        raise InputError(f"rotation works in float32, not {flat.dtype}: convert the tensor first")
    out = np.empty(flat.size, np.float32)
    kernels.rotate(flat.view(np.float32), log2_block(block), key & 0xFFFFFFFF, inverse, out)
    return out.reshape(shape)
