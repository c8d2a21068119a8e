"""Sums of float32 values rounded only once, by integers of any length."""

from __future__ import annotations

from collections.abc import Iterable

LEAST = -149
"""Every finite float32 is a multiple of 2**LEAST."""

INFINITY = 0x7F800000
NAN = 0x7FC00000

_SIGN = 1 << 31


def scaled(bits: int) -> int:
    """A finite float32 word as a multiple of 2**-149.

    >>> scaled(0x3F800000) == 1 << 149
    True
    """
    field, mantissa = bits >> 23 & 255, bits & 0x7FFFFF
    size = mantissa if field == 0 else (mantissa | 1 << 23) << field - 1
    return -size if bits & _SIGN else size


def nearest(total: int) -> int:
    """The float32 word nearest to total * 2**-149, ties to even; a sum of zero is +0.0.

    >>> nearest(1), hex(nearest(-3 << 149)), hex(nearest(1 << 300))
    (1, '0xc0400000', '0x7f800000')
    """
    sign, size = (_SIGN, -total) if total < 0 else (0, total)
    shift = max(size.bit_length() - 24, 0)
    kept, rest, half = size >> shift, size & (1 << shift) - 1, 1 << shift >> 1
    if shift and (rest > half or (rest == half and kept & 1)):
        kept += 1  # at 2**24 the carry runs into the exponent, as it should
    # With the hidden bit in place, the exponent field counts from shift, not shift + 1.
    word = kept + (shift << 23)
    return sign | min(word, INFINITY)


def add(lattice: int, lsb: int, words: Iterable[int]) -> int:
    """The float32 word of lattice * 2**lsb + the values of the words: correctly rounded, IEEE's NaN and Inf.

    >>> hex(add(3, 0, [0x3F800000])), hex(add(0, 0, [0x7F800000, 0xFF800000]))
    ('0x40800000', '0x7fc00000')
    """
    total, infinite = lattice << lsb - LEAST, set()
    for word in words:
        if word >> 23 & 255 < 255:
            total += scaled(word)
        elif word & 0x7FFFFF:
            return NAN
        else:
            infinite.add(word)
    if infinite:
        return infinite.pop() if len(infinite) == 1 else NAN
    return nearest(total)
