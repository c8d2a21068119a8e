"""From lanes to values: one pass, directly from packed lanes where a sum arrived in that form."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sumwire.codec.algebra import DivideBy, Floats, Missing, Payload, Sum
from sumwire.codec.lattice.parts import LatticePayload, LatticeSum, PackedLatticeSum
from sumwire.codec.lattice.rotation import stream_key
from sumwire.codec.options import one_of, same_family
from sumwire.codec.tensors import buffer
from sumwire.errors import InputError, RoundError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.lattice.scheme import Keys

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice


def decode(codec: Lattice, total: Sum | Payload, out: Floats | None, missing: Missing, divide_by: DivideBy) -> Floats:
    """See `Lattice.decode`."""
    one_of("missing", missing, ("raise", "zero"))
    one_of("divide_by", divide_by, ("count", "workers"))
    if not isinstance(total, LatticeSum | PackedLatticeSum | LatticePayload):
        raise InputError(
            f"decode takes a payload or sum of a Lattice codec, not {type(total).__name__}: "
            "encode tensors, and add their payloads, with this codec"
        )
    same_family(codec, total.codec, "decode")
    if isinstance(total, PackedLatticeSum):
        return _decode_packed(codec, total, out, divide_by)
    total = total if isinstance(total, LatticeSum) else codec.add([total])
    whole = total.whole()
    terms = whole.lattice_terms
    classes = terms.layout(codec).classes
    lost = np.flatnonzero((whole.counts == 0) & (classes > 0))
    if len(lost) and missing == "raise" and divide_by == "count":
        raise RoundError(
            f"nothing arrived of {len(lost)} of {len(classes)} blocks (the first is {lost[0]}): wait for "
            'more frames, or take them as zero with missing="zero"'
        )
    scales = terms.scales
    if divide_by == "workers":
        # A mean over the count is proportional to the scale; complete blocks keep their bits.
        scales = scales * (whole.counts / np.float32(codec.workers)).astype(np.float32)
    mean = buffer(out, terms.size, np.float32, whole.lanes)
    kernels.decode(
        codec.scheme, whole.lanes, whole.counts, scales, classes, sign_key(codec, whole.round_id), mean, 0, len(classes)
    )
    return mean.reshape(terms.shape)


def _decode_packed(codec: Lattice, total: PackedLatticeSum, out: Floats | None, divide_by: DivideBy) -> Floats:
    terms = total.lattice_terms
    classes = terms.layout(codec).classes
    counts = np.full(len(classes), total.count, np.int32)
    scales = terms.scales
    if divide_by == "workers" and total.count != codec.workers:
        scales = scales * np.float32(total.count / codec.workers)
    mean = buffer(out, terms.size, np.float32)
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
    out = np.empty(terms.size, np.float32)  # of which only the pages of this part are touched
    key = sign_key(codec, payload.round_id)
    kernels.decode(codec.scheme, total.lanes, counts, terms.scales, terms.layout(codec).classes, key, out, lo, hi)
    where = slice(int(terms.sizes[:lo].sum()), int(terms.sizes[:hi].sum()))
    return where, out[where]


def sign_key(codec: Lattice, round_id: int) -> int:
    """The stream of the rotation's signs, which all workers of a round share."""
    return keys(codec.seed, round_id, 0, codec.workers, True).sign


@lru_cache(maxsize=1024)
def keys(seed: int, round_id: int, rank: int, workers: int, stratified: bool) -> Keys:
    """Streams 0, 1, 2: signs (shared), rounding noise (shared when stratified), dither (never)."""
    return Keys(
        sign=stream_key(seed, round_id, 0),
        noise=stream_key(seed, round_id, 1, 0 if stratified else rank + 1),
        dither=stream_key(seed, round_id, 2, rank + 1),
        shift=rank * 65536 // workers if stratified else 0,
    )
