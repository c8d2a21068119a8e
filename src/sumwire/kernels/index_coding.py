"""The bitmap of a shard as bytes: six ways, of which the shortest is sent. This file defines them.

Byte 0 is the mode, byte 1 the Rice parameter k of modes 1 and 2, else 0. Bits run from the least
significant one of each byte; numbers are little-endian; the last byte is filled up with zero bits.

| mode | name | after byte 1 |
|---|---|---|
| 0 | empty | nothing: no bit is set |
| 1 | gaps | uint32 count of set bits; for each, the zeros since the one before, Rice coded with k |
| 2 | runs | uint32 count of set bits; byte k1; in turns the length of a run of zeros, Rice coded with k, and of a run of ones less 1, Rice coded with k1, until count ones are there |
| 3 | plain | the bitmap, ceil(bits / 8) bytes |
| 4 | words | a bitmap of the 64-bit words that are not 0, ceil(ceil(bits / 64) / 8) bytes; then those words, 8 bytes each |
| 5 | full | nothing: all bits are set |

Rice code of v: v >> k ones, a zero, the k low bits of v. Each k is the one in 0..31 that makes its codes
shortest, and the mode the one that makes the whole shortest; the lower of equals. Modes 1 and 2 hold
up to 2**32 - 1 set bits.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import FrameError
from sumwire.kernels.layout import Bytes, Ints

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
)
"""What is wrong with a coded index, by the number that the native decoder returns."""

TRUNCATED, MODE, PARAMETER, COUNT, BEYOND, PADDING, ENDLESS, EMPTY_WORD = range(1, 9)


def error(code: int, bits: int) -> FrameError:
    return FrameError(f"bad index of {bits} bits: {ERRORS[code]}")


@dataclass(frozen=True)
class Plan:
    """How a bitmap will be coded, and in how many bytes."""

    nbytes: int
    mode: int
    k0: int = 0
    k1: int = 0


def _flags(words: NDArray[np.uint64], bits: int) -> Bytes:
    return np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little", count=bits)


def _runs(flags: Bytes) -> tuple[Ints, Ints]:
    """Lengths of the runs of zeros and of the runs of ones behind them; zeros at the end do not count."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=np.int8(0), append=np.int8(0)))
    begins, ends = edges[::2], edges[1::2]
    return begins - np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(begins)], ends - begins


def _best_k(values: Ints) -> tuple[int, int]:
    """Bits of the values' Rice codes, and the k that makes them fewest."""
    return min((len(values) * (k + 1) + int((values >> k).sum()), k) for k in range(MAX_K + 1))


def _gaps(flags: Bytes) -> Ints:
    return np.diff(np.flatnonzero(flags), prepend=-1) - 1


def plan(words: NDArray[np.uint64], bits: int) -> Plan:
    """The shortest way to code the bitmap."""
    flags = _flags(words, bits)
    count = int(flags.sum(dtype=np.int64))
    if not count:
        return Plan(2, EMPTY)
    plans = [Plan(2 + -(-bits // 8), PLAIN), Plan(2 + -(-len(words) // 8) + 8 * int((words != 0).sum()), WORDS)]
    if count == bits:
        plans.append(Plan(2, FULL))
    if count <= MAX_COUNT:
        cost, k = _best_k(_gaps(flags))
        plans.append(Plan(6 + -(-cost // 8), GAPS, k))
        zeros, ones = _runs(flags)
        (cost0, k0), (cost1, k1) = _best_k(zeros), _best_k(ones - 1)
        plans.append(Plan(7 + -(-(cost0 + cost1) // 8), RUNS, k0, k1))
    return min(plans, key=lambda p: (p.nbytes, p.mode))


def index_bytes(words: NDArray[np.uint64], bits: int) -> int:
    """Length of what `encode_index` returns."""
    return plan(words, bits).nbytes


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


def encode_index(words: NDArray[np.uint64], bits: int, out: Bytes | None = None) -> Bytes:
    """The bitmap in the shortest of the six ways. `out` is memory that may be used for it; here it is not."""
    chosen = plan(words, bits)
    flags = _flags(words, bits)
    count = np.array([flags.sum(dtype=np.int64)], "<i8").view(np.uint8)[:4]
    body: tuple[object, ...] = ()
    if chosen.mode == GAPS:
        gaps = _gaps(flags)
        body = (count, _rice(gaps, np.full_like(gaps, chosen.k0)))
    elif chosen.mode == RUNS:
        zeros, ones = _runs(flags)
        ks = np.array([[chosen.k0, chosen.k1]] * len(zeros), np.int64).reshape(-1)
        body = (count, [chosen.k1], _rice(np.stack([zeros, ones - 1], axis=1).reshape(-1), ks))
    elif chosen.mode == PLAIN:
        body = (np.packbits(flags, bitorder="little"),)
    elif chosen.mode == WORDS:
        body = (np.packbits(words != 0, bitorder="little"), words[words != 0].astype("<u8").view(np.uint8))
    head = [chosen.mode, chosen.k0]
    return np.concatenate([np.asarray(part, np.uint8) for part in (head, *body)])


class _Reader:
    """Rice codes out of bytes."""

    def __init__(self, data: Bytes, bits: int) -> None:
        self.data, self.bits, self.at = data.tobytes(), bits, 0
        flags = np.unpackbits(data, bitorder="little")
        self.end = len(flags)
        zeros = np.where(flags == 0, np.arange(self.end), self.end)
        self.next_zero = np.minimum.accumulate(zeros[::-1])[::-1]

    def rice(self, k: int) -> int:
        stop = int(self.next_zero[self.at]) if self.at < self.end else self.end
        if stop == self.end:
            raise error(TRUNCATED if self.at == self.end else ENDLESS, self.bits)
        quotient, low = stop - self.at, stop + 1
        self.at = low + k
        if self.at > self.end:
            raise error(TRUNCATED, self.bits)
        window = int.from_bytes(self.data[low // 8 : low // 8 + 5], "little")
        return quotient << k | window >> low % 8 & (1 << k) - 1

    def finish(self) -> int:
        """Bytes read, once what is left of the last one is zero."""
        used = -(-self.at // 8)
        if self.at % 8 and self.data[used - 1] >> self.at % 8:
            raise error(PADDING, self.bits)
        return used


def decode_index(data: Bytes, bits: int, words: NDArray[np.uint64]) -> tuple[int, int]:
    """The bitmap into words; returns how many bits are set and how many bytes the code had.

    Bytes behind the code are left alone. Raises FrameError if the code is bad; words are then garbage.
    """
    if len(data) < 2:
        raise error(TRUNCATED, bits)
    mode, k0 = int(data[0]), int(data[1])
    if mode > FULL:
        raise error(MODE, bits)
    if k0 > (MAX_K if mode in (GAPS, RUNS) else 0):
        raise error(PARAMETER, bits)
    if mode in (GAPS, RUNS):
        flags, used = _decode_rice(data, bits, mode, k0)
    elif mode in (PLAIN, WORDS):
        flags, used = _decode_bitmap(data, bits, mode)
    else:
        flags, used = np.full(bits, mode == FULL, np.uint8), 2
    whole = np.zeros(64 * len(words), np.uint8)
    whole[:bits] = flags
    words[:] = np.packbits(whole, bitorder="little").view("<u8")
    return int(flags.sum(dtype=np.int64)), used


def _decode_rice(data: Bytes, bits: int, mode: int, k0: int) -> tuple[Bytes, int]:
    head = 6 if mode == GAPS else 7
    if len(data) < head:
        raise error(TRUNCATED, bits)
    count = int.from_bytes(data[2:6].tobytes(), "little")
    k1 = int(data[6]) if mode == RUNS else 0
    if k1 > MAX_K:
        raise error(PARAMETER, bits)
    if not 1 <= count <= bits:
        raise error(COUNT, bits)
    reader = _Reader(data[head:], bits)
    flags = np.zeros(bits, np.uint8)
    at = ones = 0
    while ones < count:
        at += reader.rice(k0)
        if at >= bits:
            raise error(BEYOND, bits)
        run = 1 + reader.rice(k1) if mode == RUNS else 1
        if run > bits - at:
            raise error(BEYOND, bits)
        if run > count - ones:
            raise error(COUNT, bits)
        flags[at : at + run] = 1
        at += run
        ones += run
    return flags, head + reader.finish()


def _decode_bitmap(data: Bytes, bits: int, mode: int) -> tuple[Bytes, int]:
    entries = bits if mode == PLAIN else -(-bits // 64)
    used = 2 + -(-entries // 8)
    if len(data) < used:
        raise error(TRUNCATED, bits)
    flags = np.unpackbits(data[2:used], bitorder="little")
    if flags[entries:].any():
        raise error(PADDING, bits)
    if mode == PLAIN:
        return flags[:bits], used
    present = flags[:entries].astype(np.bool_)
    filled = int(present.sum(dtype=np.int64))
    if len(data) < used + 8 * filled:
        raise error(TRUNCATED, bits)
    found = np.zeros(entries, "<u8")
    found[present] = np.frombuffer(data[used : used + 8 * filled].tobytes(), "<u8")
    if not found[present].all():
        raise error(EMPTY_WORD, bits)
    flags = np.unpackbits(found.view(np.uint8), bitorder="little")
    if flags[bits:].any():
        raise error(BEYOND, bits)
    return flags[:bits], used + 8 * filled
