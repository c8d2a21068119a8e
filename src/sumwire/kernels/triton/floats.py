"""Roundings that the reference's bytes depend on, from operations that IEEE defines exactly.

Every launch turns contraction into FMA off (launch.py). Divisions and square roots are in float64 only, where PTX has
div.rn and sqrt.rn and AMD's backend expands to correctly rounded sequences; the interpreter shows the bits on a CPU,
and tests/gpu/test_compile.py that PTX has no other form of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rint32(x):
    """The nearest integer, ties to even, of float32: a sum with 2**23 has no fraction."""
    shift = tl.where(x < 0, -8388608.0, 8388608.0)
    return tl.where(tl.abs(x) < 8388608.0, (x + shift) - shift, x)


@triton.jit
def rint64(x):
    """The nearest integer, ties to even, of float64."""
    shift = tl.where(x < 0, tl.full([], -4503599627370496.0, tl.float64), tl.full([], 4503599627370496.0, tl.float64))
    return tl.where(tl.abs(x) < 4503599627370496.0, (x + shift) - shift, x)


@triton.jit
def exponent_of(x):
    """frexp's exponent of a positive, normal float64."""
    return ((x.to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32) - 1022


@triton.jit
def power_of_two(exponent):
    """2**exponent in float64, for exponents of normal numbers."""
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def fold_halves(acc, ROWS: tl.constexpr):
    """[ROWS, 16] accumulators to [ROWS]: the pairwise end of `arrays.fold16`."""
    acc = tl.sum(tl.reshape(acc, [ROWS, 2, 8]), axis=1)
    acc = tl.sum(tl.reshape(acc, [ROWS, 2, 4]), axis=1)
    acc = tl.sum(tl.reshape(acc, [ROWS, 2, 2]), axis=1)
    return tl.sum(acc, axis=1)


@triton.jit
def fold16(terms, size, BLOCK: tl.constexpr):
    """`arrays.fold16` of a block in registers: 16 interleaved accumulators, added one row after the other.

    A row is picked by a sum with zeros, which is exact. Slow, and only for blocks that need it.
    """
    rows = tl.reshape(terms, [BLOCK // 16, 16])
    number = tl.arange(0, BLOCK // 16)[:, None]
    acc = tl.zeros([16], tl.float64)
    for k in range(tl.cdiv(size, 16)):
        acc += tl.sum(tl.where(number == k, rows, 0.0), axis=0)
    return tl.sum(fold_halves(tl.reshape(acc, [1, 16]), 1))


@triton.jit
def unlift(scale):
    """(scale * lift as float64, lift, drop): blocks below 2**-90 are computed 2**64 times larger."""
    tiny = scale < 8.077935669463161e-28
    lift = tl.where(tiny, 18446744073709551616.0, 1.0)
    drop = tl.where(tiny, 5.421010862427522e-20, 1.0)
    return (scale * lift).to(tl.float64), lift, drop
