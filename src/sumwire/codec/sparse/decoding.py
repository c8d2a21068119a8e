"""From segments to values: a sum's entries expanded into the dense tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Floats, Missing, Payload, Sum
from sumwire.codec.options import one_of, same_family
from sumwire.codec.sparse import segment
from sumwire.codec.sparse.parts import SparsePayload, SparseSum
from sumwire.errors import InputError, RoundError
from sumwire.kernels import sparse as kernels
from sumwire.kernels.buffers import thread_buffers

if TYPE_CHECKING:
    from sumwire.codec.sparse.codec import Sparse


def decode(
    codec: Sparse, total: Sum | Payload, out: Floats | None, missing: Missing, divisor: float | None
) -> NDArray[np.float32]:
    """The sum over the divisor; None: over each shard's count."""
    one_of("missing", missing, ("raise", "zero"))
    if not isinstance(total, SparseSum | SparsePayload):
        raise InputError(f"decode takes a payload or sum of a Sparse codec, not {type(total).__name__}")
    same_family(codec, total.codec, "decode")
    whole = (total if isinstance(total, SparseSum) else SparseSum.of([total])).closed()
    counts = whole.counts_of_all()
    lost = np.flatnonzero(counts == 0)
    if len(lost) and missing == "raise":
        raise RoundError(
            f"nothing arrived of {len(lost)} of {codec.shards} shards (the first is {lost[0]}): wait for more "
            'frames, or take them as zero with missing="zero"'
        )
    flat = np.zeros(whole.size, np.float32) if out is None else _lent(out, whole)
    shards, scratch = codec.deal(whole.size), thread_buffers()
    for shard, data in whole.segments():
        entries = segment.read(data, 0, shards.bits[shard], scratch)
        values = np.asarray(entries.values, np.float32)
        over = divisor or float(counts[shard])
        kernels.expand(entries.words, values, shards.starts[shard], shards.block, flat, over)
    return flat.reshape(whole.shape)


def _lent(out: NDArray[np.float32], total: SparseSum) -> NDArray[np.float32]:
    """The caller's memory, with zeros where shards are missing."""
    if not (isinstance(out, np.ndarray) and out.dtype == np.float32 and out.flags.carray and out.size == total.size):
        raise InputError(f"out must be a contiguous, writeable float32 array of {total.size} elements")
    flat = out.reshape(-1)
    if (total.counts_of_all() == 0).any():
        flat[:] = 0
    return flat
