"""The Walsh-Hadamard transform of a block that one program holds in registers. Integers only: exact in any order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate(y, size, BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, FIRST: tl.constexpr = 0):
    """Unnormalized transform of y, in wrapping integers of its dtype.

    With TAIL, the block has `size` coordinates, a power of two that may be less than BLOCK. Stages of
    distances below 2**FIRST are omitted.
    """
    for stage in tl.static_range(FIRST, LOG):
        pairs = tl.permute(tl.reshape(y, [BLOCK >> (stage + 1), 2, 1 << stage]), (0, 2, 1))
        a, b = tl.split(pairs)
        mixed = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), [BLOCK])
        if TAIL:
            y = tl.where((1 << stage) < size, mixed, y)
        else:
            y = mixed
    return y
