"""Variable-length coding of small integers: a histogram, then a range coder that knows it.

The range coder is constriction's. The histogram is sent by halves: how many of the symbols lie in the lower
half of the alphabet, each count being uniform between none and all; then the same within each half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import ConfigError, FrameError, install_hint

PIECE = 1 << 20
"""Symbols with one histogram: constriction's uniform models end at 2**24."""

Symbols = NDArray[np.integer[Any]]


def _coder() -> Any:
    try:
        import constriction
    except ModuleNotFoundError:
        raise ConfigError(
            f"variable-length coding needs constriction, which is not installed: {install_hint('dme')}"
        ) from None
    return constriction.stream


def encode(symbols: Symbols, alphabet: int) -> bytes:
    """The symbols, all in 0..alphabet-1, as bytes: their entropy and about log2(count) bits per symbol in use.

    >>> len(encode(np.zeros(100_000, np.int32), 64)) <= 16
    True
    """
    stream = _coder()
    coder = stream.queue.RangeEncoder()
    for start in range(0, len(symbols), PIECE):
        piece = np.ascontiguousarray(symbols[start : start + PIECE], np.int32)
        counts = np.bincount(piece, minlength=alphabet)
        for lower, total in _halves(counts):
            coder.encode(lower, stream.model.Uniform(), total + 1)
        if np.count_nonzero(counts) > 1:
            used, dense = _dense(counts)
            coder.encode(dense[piece], _model(stream, counts[used]))
    return np.asarray(coder.get_compressed(), "<u4").tobytes()


def decode(data: bytes | memoryview, size: int, alphabet: int) -> NDArray[np.uint16]:
    """The symbols again. Bytes that no encoder writes may give other symbols, but never one outside the alphabet."""
    stream = _coder()
    if len(data) % 4:
        raise FrameError(f"coded symbols take whole words, not {len(data)} bytes")
    decoder = stream.queue.RangeDecoder(np.frombuffer(data, "<u4").astype(np.uint32))
    out = np.empty(size, np.uint16)
    try:
        for start in range(0, size, PIECE):
            here = min(PIECE, size - start)
            counts = _read_counts(stream, decoder, here, alphabet)
            used, _ = _dense(counts)
            if len(used) == 1:
                out[start : start + here] = used[0]
            else:
                out[start : start + here] = used[decoder.decode(_model(stream, counts[used]), here)]
    except AssertionError as error:  # constriction's own word for it
        raise FrameError("the coded symbols are damaged: no encoder writes them") from error
    if not decoder.maybe_exhausted():
        raise FrameError("there are bytes behind the last coded symbol")
    return out


def _model(stream: Any, counts: NDArray[np.int64]) -> Any:
    return stream.model.Categorical(counts.astype(np.float32), perfect=False)


def _dense(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The symbols in use, and each symbol's number among them: the coder spends bits on every symbol it knows."""
    used = np.flatnonzero(counts)
    return used, (np.cumsum(counts > 0) - 1).astype(np.int32)


def _levels(alphabet: int) -> int:
    return (alphabet - 1).bit_length()


def _halves(counts: NDArray[np.int64]) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """(count in the lower half, count in all) of every part that has any symbols, from the whole alphabet down."""
    levels = _levels(len(counts))
    padded = np.zeros(1 << levels, np.int64)
    padded[: len(counts)] = counts
    out = []
    for level in range(levels):
        parts = padded.reshape(2 << level, -1).sum(axis=1).astype(np.int32)
        lower, total = parts[::2], parts[::2] + parts[1::2]
        out.append((lower[total > 0], total[total > 0]))
    return out


def _read_counts(stream: Any, decoder: Any, size: int, alphabet: int) -> NDArray[np.int64]:
    """What `_halves` sent."""
    counts = np.array([size], np.int32)
    for _ in range(_levels(alphabet)):
        lower = np.zeros(len(counts), np.int32)
        live = counts > 0
        lower[live] = decoder.decode(stream.model.Uniform(), counts[live] + 1)
        counts = np.stack([lower, counts - lower], axis=1).reshape(-1)
    if counts[alphabet:].any():
        raise FrameError("the coded symbols' histogram is damaged: it counts symbols beyond the alphabet")
    return counts[:alphabet].astype(np.int64)
