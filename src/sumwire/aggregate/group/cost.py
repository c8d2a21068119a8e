"""Which way a round goes: the cost rule, in bytes and messages.

Moving N coordinates between n ranks costs each rank, with latency a per message and rate r:

    plain     2(n-1) messages of fp32/n          2(n-1)/n * 4N bytes
    sharded   4(n-1) messages (join, b, w bits)  (n-1)/n * N * (b + w)/8 bytes, and the terms
    lanes     4(n-1) messages (join, words)      2(n-1)/n * N * word bits/8 bytes, and the terms
    sparse    4(n-1) messages (lengths, entries) (n-1)/n * N * (e(d) + e(u))/8 bytes
    compact   4(n-1) messages (bitmap, values)   2(n-1)/n * N * (1 + 32u)/8 bytes

where d is the share of coordinates that are not 0 at a rank, u = 1 - (1-d)^n that of a union of independent ones
(those of like ranks are smaller), and e(d) = d * (32 + min(log2(1/d) + 1.6, 1/d)) the bits of entries and their places.

Few ranks on gloo join in one hop instead, for more bytes; the rule does not split that hair. The least sum of
messages * a + bytes / r wins. Both constants are assumptions, the same at every rank, since all must choose alike:
ordinary Ethernet, where the choice matters most.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.codec import Lattice

Algorithm = Literal["sharded", "lanes", "plain", "sparse", "compact", "rows", "probe", "server"]
ALGORITHMS: tuple[Algorithm, ...] = ("sharded", "lanes", "plain", "sparse", "compact", "probe")
DENSE: tuple[Algorithm, ...] = ("sharded", "lanes", "plain")
"""Those whose cost does not depend on what the tensor holds."""
LOSSLESS: tuple[Algorithm, ...] = ("sparse", "compact")

Densities = NDArray[np.float64]

LATENCY = 50e-6
"""Seconds a message, over TCP."""

RATE = 1e9
"""Bits a second."""


def bits_per_rank(algorithm: Algorithm, codec: Lattice, ranks: int, size: int) -> float:
    """Bits that each rank sends in one round of `size` coordinates of average energy."""
    share = (ranks - 1) / ranks
    if algorithm == "plain":
        return 2 * share * 32 * size
    blocks = -(-size // codec.block)
    terms = 2 * share * 32 * blocks
    if algorithm == "sharded":
        return share * size * (codec.bits + codec.sum_bits) + terms
    return 2 * share * size * 32 / codec._typical.lanes_per_word + terms


def seconds(algorithm: Algorithm, codec: Lattice, ranks: int, size: int) -> float:
    """The rule's estimate of one round."""
    messages = (2 if algorithm == "plain" else 4) * (ranks - 1)
    return messages * LATENCY + bits_per_rank(algorithm, codec, ranks, size) / RATE


@lru_cache(maxsize=1024)
def choose(codec: Lattice, ranks: int, size: int, *, all_to_all: bool = True) -> Algorithm:
    """The cheapest algorithm for a tensor of `size` coordinates.

    >>> codec = Lattice(workers=4, bits=4)
    >>> choose(codec, 4, 25_000_000), choose(codec, 4, 500)
    ('sharded', 'plain')
    """
    possible = [name for name in DENSE if all_to_all or name != "sharded"]
    return min(possible, key=lambda name: seconds(name, codec, ranks, size))


def entry_bits(density: Densities) -> Densities:
    """Bits a coordinate of values and their places; never more than sending all.

    >>> entry_bits(np.array([0, 0.01, 1])).round(2).tolist()
    [0.0, 0.4, 32.0]
    """
    apart = 1 / np.maximum(density, 1e-12)
    bits: Densities = np.minimum(32.0, density * (32 + np.minimum(np.log2(apart) + 1.6, apart)))
    return bits


def lossless_bits(algorithm: Algorithm, ranks: int, densities: Densities) -> float:
    """Bits a coordinate that a rank with these densities, stretch by stretch, expects both ways together."""
    union = 1 - (1 - densities) ** ranks
    bits = entry_bits(densities) + entry_bits(union) if algorithm == "sparse" else 2 * (1 + 32 * union)
    return float(bits.mean()) if len(bits) else 0.0


def choose_lossless(codec: Lattice, ranks: int, size: int, bits: float, *, all_to_all: bool = True) -> Algorithm:
    """The cheapest algorithm for a tensor that takes so many bits a coordinate without loss.

    >>> codec = Lattice(workers=4, bits=4)
    >>> choose_lossless(codec, 4, 25_000_000, 3.0), choose_lossless(codec, 4, 25_000_000, 30.0)
    ('sparse', 'sharded')
    """
    dense = choose(codec, ranks, size, all_to_all=all_to_all)
    lossless: Algorithm = "sparse" if all_to_all else "compact"
    taken = 4 * (ranks - 1) * LATENCY + (ranks - 1) / ranks * size * bits / RATE
    return lossless if taken < seconds(dense, codec, ranks, size) else dense


def break_even(saved_bits: float, codec_seconds: float) -> float:
    """The link rate, in bits a second, above which compressing takes longer than it saves."""
    return saved_bits / codec_seconds if codec_seconds > 0 else float("inf")
