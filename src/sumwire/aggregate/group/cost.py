"""When a round is worth compressing: the rule of `cost_model`, on the link that it assumes."""

from __future__ import annotations

from functools import lru_cache

from sumwire.aggregate.cost_model import ETHERNET, all_reduce, reduce_scatter, scattered, sharded
from sumwire.codec.base import Codec


@lru_cache(maxsize=1024)
def pays(codec: Codec, ranks: int, size: int, value_bits: int = 32) -> bool:
    """Whether a compressed round of `size` coordinates is expected to be faster than an all-reduce of such values.

    >>> from sumwire.codec.lattice.codec import Lattice
    >>> codec = Lattice(workers=4, bits=4)
    >>> pays(codec, 4, 25_000_000), pays(codec, 4, 500)
    (True, False)
    >>> codec = Lattice(workers=2, bits=4)
    >>> pays(codec, 2, 6_000, 32), pays(codec, 2, 6_000, 16)
    (True, False)
    """
    bits = codec.expected_bits(size)
    if bits is None:
        return True  # it depends on what the tensor holds
    up, down, terms = bits
    coded, plain = sharded(ranks, up, down, terms), all_reduce(ranks, size, value_bits)
    return coded.seconds(ETHERNET) < plain.seconds(ETHERNET)


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
    coded, plain = scattered(ranks, up, terms), reduce_scatter(ranks, size, value_bits)
    return coded.seconds(ETHERNET) < plain.seconds(ETHERNET)
