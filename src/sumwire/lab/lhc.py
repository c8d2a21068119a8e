"""What the paper "lossless homomorphic compression" (arXiv 2402.07529) would send: its bytes, not its code.

A worker's message is an index of coordinates that may differ from zero and a Count Sketch of their values. Both
are as large as the *union* of all workers' non-zeros asks for, and both are all-reduced, so for a tensor of N
coordinates, U of them in the union, each of n workers sends

    2 (n-1)/n * (index + 4 * 1.26 * (U + F))  bytes

    bitmap   index = N / 8          F = 0
    Bloom    index = b U / 8        F = (N - U) exp(-b ln(2)^2): what the filter lets pass gets cells, too

1.26 cells of fp32 a candidate is just above the threshold of 1.23 at which three hashes can be peeled. b is the best
one. Everything is rounded in the paper's favor: fractional b and hashes, U known in advance, no second try when a
peel gets stuck, an OR all-reduce of single bits (the published code sums 4 bits a coordinate), no headers.
"""

from __future__ import annotations

import math

CELLS = 1.26
"""Of the sketch, for each candidate."""

CELL_BYTES = 4

_DECAY = math.log(2) ** 2
"""A Bloom filter with b bits an element and the best number of hashes lets pass exp(-b * _DECAY)."""


def ring_share(workers: int) -> float:
    """How often each worker sends each byte of an all-reduce."""
    return 2 * (workers - 1) / workers


def dense_bytes(size: int, workers: int) -> float:
    """Bytes that each worker sends in a ring all-reduce of fp32."""
    return ring_share(workers) * 4 * size


def bitmap_bytes(size: int, union: float) -> float:
    """A worker's message with a bit for each coordinate."""
    return size / 8 + CELL_BYTES * CELLS * union


def bloom_bytes(size: int, union: float, bits: float) -> float:
    """A worker's message with a Bloom filter of so many bits for each non-zero of the union."""
    return bits * union / 8 + CELL_BYTES * CELLS * (union + false_positives(size, union, bits))


def false_positives(size: int, union: float, bits: float) -> float:
    """Zeros that the filter does not rule out."""
    return (size - union) * math.exp(-bits * _DECAY)


def best_bloom_bits(size: int, union: float) -> float:
    """Bits a non-zero that make `bloom_bytes` least: where one more costs as much as it saves in cells.

    0 means that no filter pays: every coordinate gets its cells.

    >>> round(best_bloom_bits(1 << 20, 0.001 * (1 << 20)), 1)
    20.5
    """
    if not 0 < union < size:
        return 0.0
    return max(0.0, math.log(8 * CELL_BYTES * CELLS * _DECAY * (size - union) / union) / _DECAY)


def best_bytes(size: int, union: float, workers: int) -> float:
    """Bytes that each worker sends, with the cheaper index.

    >>> size = 1 << 20
    >>> round(best_bytes(size, 0.1 * size, 16) / dense_bytes(size, 16), 3)
    0.157
    """
    if union == 0:
        return 0.0
    bloom = bloom_bytes(size, union, best_bloom_bits(size, union))
    return ring_share(workers) * min(bitmap_bytes(size, union), bloom)
