"""A whole round in one process: for simulation, tests, and tensors that are all here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.base import Codec, same
from sumwire.codec.lattice.residual import Residual
from sumwire.codec.tensors import Tensor, give_back
from sumwire.errors import ConfigError


def average(
    codec: Codec, xs: Iterable[Tensor], round_id: int = 0, *, residuals: Sequence[Residual] | None = None
) -> Tensor:
    """The mean of the tensors as `codec` computes it: propose, join, encode, add, decode.

    With `residuals`, one for each tensor and of this codec, every tensor is corrected first, and what its payload does
    not hold stays in its residual; the sum is then divided by `codec.workers`, however few tensors there are, because
    the others' come later.

    The result has the inputs' shape, and the first one's dtype and kind (torch for torch). Give every
    tensor and step a `round_id` of its own: rounds of one id share all random numbers, so that their
    errors repeat instead of averaging out.

    >>> import numpy as np, sumwire
    >>> xs = [np.full(8, k, np.float32) for k in range(4)]
    >>> mean = average(sumwire.Lattice(workers=4, bits=8), xs)
    >>> bool(np.allclose(mean, 1.5, atol=0.2))
    True
    """
    xs = list(xs)
    if not xs:
        raise ConfigError("nothing to average: pass at least one tensor")
    if residuals is not None:
        return give_back(_with_feedback(xs, residuals, codec, round_id), xs[0])
    terms = reduce(or_, (codec.propose(x) for x in xs))
    payloads = [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]
    return give_back(codec.finish(codec.add(payloads), xs), xs[0])


def _with_feedback(
    xs: Sequence[Tensor], residuals: Sequence[Residual], codec: Codec, round_id: int
) -> NDArray[np.float32]:
    if len(residuals) != len(xs) or len(set(map(id, residuals))) != len(xs):
        raise ConfigError(f"{len(residuals)} residuals for {len(xs)} tensors: each tensor needs one of its own")
    for residual in residuals:
        same("codec family", codec.family, residual.codec.family, "average with this residual")
    lattice = residuals[0].codec
    corrected = [residual.correct(x) for residual, x in zip(residuals, xs, strict=True)]
    terms = reduce(or_, (lattice.propose(each) for each in corrected))
    payloads = [each.encode(terms, rank=rank, round_id=round_id) for rank, each in enumerate(residuals)]
    return lattice.decode(lattice.add(payloads), divide_by="workers")
