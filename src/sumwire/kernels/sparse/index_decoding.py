"""The set bits of a coded index, out of bytes that may be anything: index_coding.py defines the six modes.

An index is read as *runs* of set bits, in time and memory proportional to its bytes, whatever number of bits it claims
to set; only then, and only as far as the caller has room for them, are runs expanded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sumwire.kernels.arrays import Bytes, Ints, Words
from sumwire.kernels.sparse.index_coding import (
    BEYOND,
    COUNT,
    CROWDED,
    EMPTY_WORD,
    ENDLESS,
    FULL,
    GAPS,
    MAX_K,
    MODE,
    PADDING,
    PARAMETER,
    PLAIN,
    RUNS,
    TRUNCATED,
    WORDS,
    error,
)


class Runs(NamedTuple):
    """Runs of set bits, in order, and the bytes of the code they were read from."""

    begins: Ints
    lengths: Ints
    used: int

    @property
    def ones(self) -> int:
        return int(self.lengths.sum())

    def positions(self) -> Ints:
        before = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.begins - before, self.lengths) + np.arange(self.ones)


def measure_index(data: Bytes, bits: int) -> tuple[int, int]:
    """The number of bits that the code sets and of bytes that it has. Expands nothing; FrameError if it is bad."""
    runs = _read(data, bits, None)
    return runs.ones, runs.used


def decode_positions(data: Bytes, bits: int, room: int) -> tuple[Ints, int]:
    """Which bits are set, ascending, and the bytes of the code. FrameError if it is bad, or sets more than `room`."""
    runs = _read(data, bits, room)
    return runs.positions(), runs.used


def decode_index(data: Bytes, bits: int, words: Words) -> tuple[int, int]:
    """The bitmap into words; returns the number of bits set and of bytes that the code had.

    Bytes behind the code are ignored. Raises FrameError if the code is bad; words are then garbage.
    """
    runs = _read(data, bits, None)
    flags = np.zeros(64 * len(words), np.uint8)
    flags[runs.positions()] = 1
    words[:] = np.packbits(flags, bitorder="little").view("<u8")
    return runs.ones, runs.used


def _read(data: Bytes, bits: int, room: int | None) -> Runs:
    if len(data) < 2:
        raise error(TRUNCATED, bits)
    mode, k0 = int(data[0]), int(data[1])
    if mode > FULL:
        raise error(MODE, bits)
    if k0 > (MAX_K if mode in (GAPS, RUNS) else 0):
        raise error(PARAMETER, bits)
    if mode in (GAPS, RUNS):
        return _read_rice(data, bits, mode, k0, room)
    if mode in (PLAIN, WORDS):
        at, used = _read_bitmap(data, bits, mode)
        runs = Runs(at, np.ones(len(at), np.int64), used)
    else:
        runs = Runs(np.zeros(1, np.int64), np.array([bits if mode == FULL else 0]), 2)
    if room is not None and runs.ones > room:
        raise error(CROWDED, bits)
    return runs


class _Reader:
    """Rice codes out of bytes."""

    def __init__(self, data: Bytes, bits: int) -> None:
        self.data, self.bits, self.at = data.data, bits, 0
        self.end = 8 * len(data)

    def rice(self, k: int) -> int:
        if self.at >= self.end:
            raise error(TRUNCATED, self.bits)
        stop = self.at
        while stop < self.end:
            window = self._window(stop)
            ones = (~window & window + 1).bit_length() - 1
            stop += min(ones, _WINDOW)
            if ones < _WINDOW:
                break
        if stop >= self.end:
            raise error(ENDLESS, self.bits)
        quotient, low = stop - self.at, stop + 1
        self.at = low + k
        if self.at > self.end:
            raise error(TRUNCATED, self.bits)
        return quotient << k | self._window(low) & (1 << k) - 1

    def _window(self, at: int) -> int:
        """At least `_WINDOW` bits from there on; behind the end, ones."""
        some = bytes(self.data[at // 8 : at // 8 + _WINDOW // 8 + 1])
        return int.from_bytes(some.ljust(_WINDOW // 8 + 1, b"\xff"), "little") >> at % 8

    def finish(self) -> int:
        """Bytes read, once what is left of the last one is zero."""
        used = -(-self.at // 8)
        if self.at % 8 and self.data[used - 1] >> self.at % 8:
            raise error(PADDING, self.bits)
        return used


_WINDOW = 56
"""Bits that are looked at together."""


def _read_rice(data: Bytes, bits: int, mode: int, k0: int, room: int | None) -> Runs:
    head = 6 if mode == GAPS else 7
    if len(data) < head:
        raise error(TRUNCATED, bits)
    count = int.from_bytes(data[2:6].tobytes(), "little")
    k1 = int(data[6]) if mode == RUNS else 0
    if k1 > MAX_K:
        raise error(PARAMETER, bits)
    if not 1 <= count <= bits:
        raise error(COUNT, bits)
    if room is not None and count > room:
        raise error(CROWDED, bits)
    reader = _Reader(data[head:], bits)
    begins, lengths = [], []
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
        begins.append(at)
        lengths.append(run)
        at += run
        ones += run
    return Runs(np.array(begins, np.int64), np.array(lengths, np.int64), head + reader.finish())


def _read_bitmap(data: Bytes, bits: int, mode: int) -> tuple[Ints, int]:
    """Positions, of which there are no more than eight times the bytes."""
    entries = bits if mode == PLAIN else -(-bits // 64)
    used = 2 + -(-entries // 8)
    if len(data) < used:
        raise error(TRUNCATED, bits)
    flags = np.unpackbits(data[2:used], bitorder="little")
    if flags[entries:].any():
        raise error(PADDING, bits)
    present = np.flatnonzero(flags)
    if mode == PLAIN:
        return present, used
    end = used + 8 * len(present)
    if len(data) < end:
        raise error(TRUNCATED, bits)
    words = data[used:end].reshape(-1, 8)
    if not words.any(axis=1).all():
        raise error(EMPTY_WORD, bits)
    row, bit = np.nonzero(np.unpackbits(words, axis=1, bitorder="little"))
    at = 64 * present[row] + bit
    if len(at) and at[-1] >= bits:
        raise error(BEYOND, bits)
    return at, end
