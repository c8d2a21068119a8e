"""The scale of each block: its root mean square, rounded up. One read of the tensor."""

from __future__ import annotations

import triton
import triton.language as tl

from sumwire.kernels.triton.floats import fold_halves


@triton.jit(do_not_specialize=["first", "count"])
def measure_kernel(
    x, scales, logs, starts, first, count, ROTATE: tl.constexpr,
    BLOCK: tl.constexpr, LOG: tl.constexpr, TAIL: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """EACH blocks per program: 16 float64 accumulators each, in the order of `arrays.fold16`.

    Squares of float32 are exact in float64, so that contraction could not change them.
    """
    row = tl.program_id(0) * EACH + tl.arange(0, EACH)
    live = row < count
    block = first + row
    if TAIL:
        log = tl.load(logs + block, mask=live, other=0)
        size = tl.max(1 << log, axis=0)  # one block
    else:
        log = tl.full([EACH], LOG, tl.int32)
        size = BLOCK
    start = tl.load(starts + block, mask=live, other=0)
    acc, largest = _accumulated(x, start, size, live, ROTATE, EACH, 1)
    scale = _scale_of(acc, largest, log, ROTATE, EACH)
    tl.store(scales + block, scale, mask=live)


@triton.jit
def measure_large_kernel(x, scales, logs, starts, ROTATE: tl.constexpr):
    """One block beyond 2048 per program: a long chain of additions, in the same order.

    Loads of 16 rows are under way at once, or each addition would wait for memory.
    """
    block = tl.program_id(0) + tl.zeros([1], tl.int32)
    log = tl.load(logs + block)
    size = tl.max(1 << log, axis=0)
    acc, largest = _accumulated(x, tl.load(starts + block), size, block >= 0, ROTATE, 1, 16)
    tl.store(scales + block, _scale_of(acc, largest, log, ROTATE, 1))


@triton.jit
def _accumulated(x, start, size, live, ROTATE: tl.constexpr, EACH: tl.constexpr, ROWS: tl.constexpr):
    """The accumulators of EACH blocks, of whole times ROWS rows: sums of squares; largest magnitudes, as integers."""
    column = tl.arange(0, 16)[None, :]
    acc = tl.zeros([EACH, 16], tl.float64)
    largest = tl.zeros([EACH, 16], tl.int32)
    for k in range(0, size, 16 * ROWS):
        for row in tl.static_range(ROWS):
            place = k + 16 * row + column
            inside = live[:, None] & (place < size)
            value = tl.load(x + start[:, None] + place, mask=inside, other=0.0).to(tl.float32)
            if ROTATE:
                wide = value.to(tl.float64)
                acc += wide * wide
            else:  # magnitudes compare as integers, NaN above all
                largest = tl.maximum(largest, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    return acc, largest


@triton.jit
def _scale_of(acc, largest, log, ROTATE: tl.constexpr, EACH: tl.constexpr):
    if ROTATE:
        # A power of two, so that the division is exact.
        rms = tl.sqrt(fold_halves(acc, EACH) / (1 << log).to(tl.float64))
        scale = rms.to(tl.float32)
        up = scale.to(tl.float64) < rms
        scale = (scale.to(tl.int32, bitcast=True) + up.to(tl.int32)).to(tl.float32, bitcast=True)
    else:
        scale = tl.max(largest, axis=1).to(tl.float32, bitcast=True)
    return scale
