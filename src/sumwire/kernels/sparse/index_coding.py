"""The bitmap of a shard as bytes, in six modes, of which the shortest is sent. This file defines them.

Byte 0 is the mode, byte 1 the Rice parameter k of modes 1 and 2, else 0. Bits run from the least
significant one of each byte; numbers are little-endian; the last byte is filled up with zero bits. The writer is here,
the reader in index_decoding.py.

| mode | name | after byte 1 |
|---|---|---|
| 0 | empty | nothing: no bit is set |
| 1 | gaps | uint32 count of set bits; for each, the zeros since the one before, Rice coded with k |
| 2 | runs | uint32 count of set bits; byte k1; in turns the length of a run of zeros, Rice coded with k, and of a run of ones less 1, Rice coded with k1, until count ones are there |
| 3 | plain | the bitmap, ceil(bits / 8) bytes |
| 4 | words | a bitmap of the 64-bit words that are not 0, ceil(ceil(bits / 64) / 8) bytes; then those words, 8 bytes each |
| 5 | full | nothing: all bits are set |

Rice code of v: v >> k ones, a zero, the k low bits of v. Each k is the one in 0..31 that makes its codes
shortest, and the mode is the one that makes the whole shortest; the lower of equals. Modes 1 and 2 hold
up to 2**32 - 1 set bits.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sumwire.errors import FrameError
from sumwire.kernels.arrays import Bytes, Ints, Words

EMPTY, GAPS, RUNS, PLAIN, WORDS, FULL = range(6)
MAX_K = 31
MAX_COUNT = 2**32 - 1

ERRORS = (
    "",
    "it is truncated",
    "its mode is unknown",
    f"its parameter k is out of range (0..{MAX_K}; 0 where the mode has none)",
    "its count does not match: it must be in 1..bits and the runs must add up to it",
    "a position is beyond the last bit",
    "the bits that fill up its last byte are not zero",
    "a unary run never ends",
    "a word marked as non-empty is empty",
    "it is truncated: more bits are set than values follow",
)
"""What is wrong with a coded index, by the number that the native decoder returns."""

TRUNCATED, MODE, PARAMETER, COUNT, BEYOND, PADDING, ENDLESS, EMPTY_WORD, CROWDED = range(1, 10)


def error(code: int, bits: int) -> FrameError:
    return FrameError(f"bad index of {bits} bits: {ERRORS[code]}")


@dataclass(frozen=True)
class Plan:
    """How a bitmap will be coded, and in how many bytes."""

    nbytes: int
    mode: int
    k0: int = 0
    k1: int = 0


def positions(words: Words) -> Ints:
    """The set bits of a bitmap, ascending."""
    return np.flatnonzero(np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little"))


def _gaps(at: Ints) -> Ints:
    """Zeros before each set bit, since the one before."""
    return np.diff(at, prepend=-1) - 1


def _runs(at: Ints) -> tuple[Ints, Ints]:
    """Lengths of the runs of zeros and of the runs of ones behind them; zeros at the end do not count."""
    gaps = _gaps(at)
    begins = np.flatnonzero(gaps > 0) if gaps[0] else np.union1d([0], np.flatnonzero(gaps > 0))
    return gaps[begins], np.diff(begins, append=len(at))


def _best_k(values: Ints) -> tuple[int, int]:
    """Bits of the values' Rice codes, and the k that makes them fewest."""
    return min((len(values) * (k + 1) + int((values >> k).sum()), k) for k in range(MAX_K + 1))


def plan(at: Ints, bits: int) -> Plan:
    """The shortest coding of a bitmap that is set at these positions."""
    count, words = len(at), -(-bits // 64)
    if not count:
        return Plan(2, EMPTY)
    filled = 1 + int(np.count_nonzero(np.diff(at >> 6)))
    plans = [Plan(2 + -(-bits // 8), PLAIN), Plan(2 + -(-words // 8) + 8 * filled, WORDS)]
    if count == bits:
        plans.append(Plan(2, FULL))
    if count <= MAX_COUNT:
        cost, k = _best_k(_gaps(at))
        plans.append(Plan(6 + -(-cost // 8), GAPS, k))
        zeros, ones = _runs(at)
        (cost0, k0), (cost1, k1) = _best_k(zeros), _best_k(ones - 1)
        plans.append(Plan(7 + -(-(cost0 + cost1) // 8), RUNS, k0, k1))
    return min(plans, key=lambda p: (p.nbytes, p.mode))


def index_bytes(words: Words, bits: int) -> int:
    """Length of what `encode_index` returns."""
    return plan(positions(words), bits).nbytes


def _rice(values: Ints, ks: Ints) -> Bytes:
    """The values' codes, one after the other."""
    quotients = values >> ks
    lengths = quotients + 1 + ks
    begins = np.cumsum(lengths) - lengths
    bits = np.zeros(int(lengths.sum()), np.int8)
    np.add.at(bits, begins, 1)
    np.add.at(bits, begins + quotients, -1)
    bits = np.cumsum(bits, dtype=np.int8)
    for j in range(int(ks.max())):
        here = ks > j
        bits[(begins + quotients + 1 + j)[here]] = (values >> j & 1)[here]
    return np.packbits(bits.view(np.uint8), bitorder="little")


def encode_index(words: Words, bits: int, out: Bytes | None = None) -> Bytes:
    """The bitmap as bytes, in the shortest of the six modes.

    They may lie at the front of `out`, if it has room for them, and then more of it may be overwritten. Here they
    never do.
    """
    return encode_positions(positions(words), bits)


def encode_positions(at: Ints, bits: int) -> Bytes:
    """`encode_index` of the bitmap that is set at these ascending positions, in time proportional to their number."""
    chosen = plan(at, bits)
    count = np.array([len(at)], "<i8").view(np.uint8)[:4]
    body: tuple[object, ...] = ()
    if chosen.mode == GAPS:
        gaps = _gaps(at)
        body = (count, _rice(gaps, np.full_like(gaps, chosen.k0)))
    elif chosen.mode == RUNS:
        zeros, ones = _runs(at)
        ks = np.array([[chosen.k0, chosen.k1]] * len(zeros), np.int64).reshape(-1)
        body = (count, [chosen.k1], _rice(np.stack([zeros, ones - 1], axis=1).reshape(-1), ks))
    elif chosen.mode == PLAIN:
        body = (_bitmap(at, bits),)
    elif chosen.mode == WORDS:
        filled, row = np.unique(at >> 6, return_inverse=True)
        body = (_bitmap(filled, -(-bits // 64)), _bitmap(64 * row + at % 64, 64 * len(filled)))
    head = [chosen.mode, chosen.k0]
    return np.concatenate([np.asarray(part, np.uint8) for part in (head, *body)])


def _bitmap(at: Ints, bits: int) -> Bytes:
    flags = np.zeros(bits, np.uint8)
    flags[at] = 1
    return np.packbits(flags, bitorder="little")
