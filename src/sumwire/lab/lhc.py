"""Bytes that lossless homomorphic compression as published (arXiv 2402.07529) would send; a model, not its code.

A worker's message is an index of coordinates that may be non-zero and a Count Sketch of their values. The size of
both follows from the *union* of all workers' non-zeros, and both are all-reduced. So for a tensor of N coordinates,
U of them in the union, each of n workers sends

    2 (n-1)/n * (index + 4 * 1.26 * (U + F))  bytes

    bitmap   index = N / 8          F = 0
    Bloom    index = b U / 8        F = (N - U) exp(-b ln(2)^2): false positives get cells, too

1.26 fp32 cells per candidate is just above 1.23, the threshold for peeling with three hashes. b is optimal.
Everything is simplified in favor of the paper: fractional b and hashes, U known in advance, no retry when
peeling gets stuck, an OR all-reduce of single bits (the published code sums 4 bits per coordinate), no headers.
"""

from __future__ import annotations

import math

CELLS = 1.26
"""Cells of the sketch per candidate."""

CELL_BYTES = 4

_DECAY = math.log(2) ** 2
"""A Bloom filter with b bits per element and the best number of hashes has exp(-b * _DECAY) false positives."""


def ring_share(workers: int) -> float:
    """How many times each worker sends each byte of a ring all-reduce."""
    return 2 * (workers - 1) / workers


def dense_bytes(size: int, workers: int) -> float:
    """Bytes that each worker sends in a ring all-reduce of fp32."""
    return ring_share(workers) * 4 * size


def bitmap_bytes(size: int, union: float) -> float:
    """Size of a worker's message with one index bit per coordinate."""
    return size / 8 + CELL_BYTES * CELLS * union


def bloom_bytes(size: int, union: float, bits: float) -> float:
    """Size of a worker's message with a Bloom filter of `bits` per non-zero of the union."""
    return bits * union / 8 + CELL_BYTES * CELLS * (union + false_positives(size, union, bits))


def false_positives(size: int, union: float, bits: float) -> float:
    """Expected number of zeros that pass the filter."""
    return (size - union) * math.exp(-bits * _DECAY)


def best_bloom_bits(size: int, union: float) -> float:
    """Bits per non-zero that minimize `bloom_bytes`: one more bit would cost what it saves in cells.

    0 means that a filter does not pay off: every coordinate gets its cells.

    >>> round(best_bloom_bits(1 << 20, 0.001 * (1 << 20)), 1)
    20.5
    """
    if not 0 < union < size:
        return 0.0
    return max(0.0, math.log(8 * CELL_BYTES * CELLS * _DECAY * (size - union) / union) / _DECAY)


def best_bytes(size: int, union: float, workers: int) -> float:
    """Bytes that each worker sends with the smaller index.

    >>> size = 1 << 20
    >>> round(best_bytes(size, 0.1 * size, 16) / dense_bytes(size, 16), 3)
    0.157
    """
    if union == 0:
        return 0.0
    bloom = bloom_bytes(size, union, best_bloom_bits(size, union))
    return ring_share(workers) * min(bitmap_bytes(size, union), bloom)
