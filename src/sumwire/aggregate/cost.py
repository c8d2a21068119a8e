"""Which way a round goes: the cost rule, in bytes and messages.

Moving N coordinates between n ranks costs each rank, with latency a per message and rate r:

    plain     2(n-1) messages of fp32/n          2(n-1)/n * 4N bytes
    sharded   4(n-1) messages (join, b, w bits)  (n-1)/n * N * (b + w)/8 bytes, and the terms
    lanes     4(n-1) messages (join, words)      2(n-1)/n * N * word bits/8 bytes, and the terms

Few ranks on gloo join in one hop instead, for more bytes; the rule does not split that hair. The least sum of
messages * a + bytes / r wins. Both constants are assumptions, the same at every rank, since all must choose alike:
ordinary Ethernet, where the choice matters most.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from sumwire.codec.lattice import Lattice

Algorithm = Literal["sharded", "lanes", "plain"]
ALGORITHMS: tuple[Algorithm, ...] = ("sharded", "lanes", "plain")

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
    possible = [name for name in ALGORITHMS if all_to_all or name != "sharded"]
    return min(possible, key=lambda name: seconds(name, codec, ranks, size))


def break_even(saved_bits: float, codec_seconds: float) -> float:
    """The link rate, in bits a second, above which compressing takes longer than it saves."""
    return saved_bits / codec_seconds if codec_seconds > 0 else float("inf")
