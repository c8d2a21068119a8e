"""When a round is worth compressing: the cost rule, in bytes and messages.

Averaging N coordinates between n ranks costs each rank, with latency a per message and rate r:

    all-reduce        2(n-1) messages of fp32/n          2(n-1)/n * 4N bytes
    payloads, sums    4(n-1) messages (join, b, w bits)  (n-1)/n * N * (b + w)/8 bytes, and the terms both ways
    reduce-scatter    n-1 messages                       (n-1)/n * N * bytes per value
    payloads alone    3(n-1) messages (join, b bits)     (n-1)/n * N * b/8 bytes, and the terms both ways

The lesser sum of messages * a + bytes / r wins. Both constants are assumptions, the same at every rank, since all must
choose alike: ordinary Ethernet, where the choice matters most.
"""

from __future__ import annotations

from functools import lru_cache

from sumwire.codec.base import Codec

LATENCY = 50e-6
"""Seconds per message, over TCP."""

RATE = 1e9
"""Bits per second."""


@lru_cache(maxsize=1024)
def pays(codec: Codec, ranks: int, size: int) -> bool:
    """Whether a compressed round of `size` coordinates is expected to be faster than an all-reduce of float32.

    >>> from sumwire.codec.lattice.codec import Lattice
    >>> codec = Lattice(workers=4, bits=4)
    >>> pays(codec, 4, 25_000_000), pays(codec, 4, 500)
    (True, False)
    """
    bits = codec.expected_bits(size)
    if bits is None:
        return True  # it depends on what the tensor holds
    up, down, terms = bits
    saved = (ranks - 1) / ranks * (64 * size - up - down - 2 * terms)
    return saved / RATE > 2 * (ranks - 1) * LATENCY


@lru_cache(maxsize=1024)
def shard_pays(codec: Codec, ranks: int, size: int, value_bits: int = 32) -> bool:
    """Whether a compressed reduce-scatter of `size` coordinates is expected to be faster than a plain one.

    >>> from sumwire.codec.lattice.codec import Lattice
    >>> codec = Lattice(workers=4, bits=4)
    >>> shard_pays(codec, 4, 20_000), shard_pays(codec, 4, 10_000)
    (True, False)
    """
    bits = codec.expected_bits(size)
    if bits is None:
        return True
    up, _, terms = bits
    saved = (ranks - 1) / ranks * (value_bits * size - up - 2 * terms)
    return saved / RATE > 2 * (ranks - 1) * LATENCY


def break_even(saved_bits: float, codec_seconds: float) -> float:
    """The link rate, in bits per second, above which compressing takes longer than it saves."""
    return saved_bits / codec_seconds if codec_seconds > 0 else float("inf")
