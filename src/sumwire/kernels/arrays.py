"""The arrays that kernels take, and how any of them becomes float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[np.generic]
Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


def to_float32(x: AnyArray) -> Floats:
    """float32 of float16, bfloat16 (as uint16), float32 or float64; a float32 array is returned as it is."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32, copy=False)
