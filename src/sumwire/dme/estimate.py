"""A complete round of mean estimation in one process."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.local import average
from sumwire.codec.base import Codec
from sumwire.codec.tensors import Tensor, flatten
from sumwire.dme.scheme import MeanScheme
from sumwire.errors import ConfigError, InputError, MismatchError
from sumwire.kernels.arrays import to_float32


def estimate(scheme: MeanScheme | Codec, xs: Iterable[Tensor], *, round_id: int = 0) -> NDArray[np.float32]:
    """Estimate the mean of vectors in one process: encode each one under its own rank, decode and average.

    Parameters
    ----------
    scheme : MeanScheme or Codec
        How vectors are sent; a codec runs through `sumwire.average` (`Lattice(..., down_bits="exact")` if the mean is
        needed only where payloads are added).
    xs : iterable of arrays or tensors
        One vector per client, all of the same shape.
    round_id : int
        Number of the round. Rounds of equal id repeat each other's errors.

    Returns
    -------
    ndarray
        The estimated mean, float32; messages of a scheme are summed in float64.

    Raises
    ------
    ConfigError
        If there is no vector, or `round_id` is out of range.
    InputError
        If `scheme` is neither a scheme nor a codec.
    MismatchError
        If the vectors differ in shape.

    Examples
    --------
    >>> from sumwire.dme import StochasticLevels
    >>> xs = [np.full(1000, k, np.float32) for k in range(4)]
    >>> bool(np.allclose(estimate(StochasticLevels(4), xs), 1.5))
    True
    """
    xs = list(xs)
    if not xs:
        raise ConfigError("nothing to average: pass at least one vector")
    shapes = {flatten(x)[1] for x in xs}
    if len(shapes) > 1:
        raise MismatchError(f"vectors differ in shape ({sorted(shapes)}): pass vectors of one shape")
    if isinstance(scheme, Codec):
        # As float32, so that the mean is float32 for any input dtype.
        return np.asarray(average(scheme, (to_float32(flatten(x)[0]).reshape(*shapes) for x in xs), round_id=round_id))
    if not isinstance(scheme, MeanScheme):
        raise InputError(f"estimate takes a mean scheme or a codec, not {type(scheme).__name__}")
    total = np.zeros(shapes.pop())
    for rank, x in enumerate(xs):
        total += scheme.decode(scheme.encode(x, rank=rank, round_id=round_id))
    return (total / len(xs)).astype(np.float32)
