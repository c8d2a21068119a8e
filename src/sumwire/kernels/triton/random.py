"""Counter-based random numbers, as in kernels/hashing.py and kernels/lattice/blocks.py. Integers only."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def hash32(key, counter):
    """lowbias32 of a Weyl sequence that starts at key."""
    h = counter.to(tl.uint32) * 0x9E3779B9 + key.to(tl.uint32)
    h ^= h >> 16
    h *= 0x7FEB352D
    h ^= h >> 15
    h *= 0x846CA68B
    h ^= h >> 16
    return h


@triton.jit
def block_word(key, block):
    """One random word of a block."""
    return hash32(key.to(tl.uint32) ^ 0xA5A5A5A5, block)
