"""A whole round in one process: for simulation, tests, and tensors that are all here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from sumwire.codec.base import Codec
from sumwire.codec.tensors import Tensor, give_back
from sumwire.errors import ConfigError


def average(codec: Codec, xs: Iterable[Tensor], round_id: int = 0) -> Tensor:
    """The mean of the tensors as `codec` computes it: propose, join, encode, add, decode.

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
    terms = reduce(or_, (codec.propose(x) for x in xs))
    payloads = [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]
    return give_back(codec.finish(codec.add(payloads), xs), xs[0])
