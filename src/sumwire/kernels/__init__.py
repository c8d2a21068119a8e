"""The hot loops: one set of signatures, several implementations, spread over threads.

`reference` defines every kernel in NumPy, `native` is its compiled twin. The native one is used
where it loads; SUMWIRE_KERNELS=reference (or native) decides by force.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import ConfigError
from sumwire.kernels import threads
from sumwire.kernels.cache import ByteCache
from sumwire.kernels.lattice import layout, reference
from sumwire.kernels.lattice.layout import Bytes, Ints
from sumwire.kernels.lattice.reference import AnyArray, Floats
from sumwire.kernels.lattice.scheme import Keys, Scheme

_log = logging.getLogger(__name__)

block_sizes = ByteCache(layout.block_sizes, 1 << 26, lambda sizes: sizes.nbytes)
lane_bits = layout.lane_bits
lane_bytes = layout.lane_bytes
payload_bytes = layout.payload_bytes
words = layout.words


@lru_cache(maxsize=1)
def backend() -> ModuleType:
    """The module that does the work; decided at the first call."""
    wish = os.environ.get("SUMWIRE_KERNELS", "auto")
    if wish not in ("auto", "native", "reference"):
        raise ConfigError(f"SUMWIRE_KERNELS={wish!r} is not one of auto, native, reference")
    if wish != "reference":
        try:
            from sumwire.kernels.lattice import native

            return native
        except OSError as error:
            if wish == "native":
                raise
            _log.warning(
                "native kernels are not available (%s): using the NumPy reference, which gives the "
                "same bytes some hundred times slower",
                error,
            )
    return reference


def _split(scheme: Scheme, size: int, lo: int, hi: int, work: Callable[[int, int], int]) -> list[int]:
    """Call work(lo, hi) on pieces of the block range, one per thread if it is worth it."""
    # Cut between whole blocks only: the smaller ones behind them may share bytes.
    whole = max(lo, min(hi, size >> scheme.log_block))
    pieces = threads.pieces((whole - lo) << scheme.log_block)
    edges = [lo + (whole - lo) * k // pieces for k in range(pieces)] + [hi]
    return threads.run([partial(work, a, b) for a, b in pairwise(edges)])


def _offsets(bits: NDArray[np.integer[Any]]) -> Ints:
    """Where each block's bytes begin, given its bits; exact for whole blocks, which have whole bytes."""
    out = np.zeros(len(bits) + 1, np.int64)
    np.cumsum(bits, out=out[1:])
    return out >> 3


def measure(x: AnyArray, scheme: Scheme, out: Floats) -> None:
    """Scale of every block: see `reference.measure`."""

    def work(lo: int, hi: int) -> int:
        backend().measure(x, scheme, out[lo:hi], lo, hi)
        return 0

    _split(scheme, x.size, 0, len(out), work)


def allocate(
    scales: Floats, sizes: Ints, budget: int, energy: int, ladder: Sequence[int], floor: int, out: Bytes
) -> None:
    """Width of every block: see `reference.allocate`."""
    backend().allocate(scales, sizes, budget, energy, ladder, floor, out)


def encode(
    scheme: Scheme,
    x: AnyArray,
    scales: Floats,
    classes: Bytes,
    widths: Bytes,
    keys: Keys,
    out: Bytes,
    residual: Floats | None = None,
) -> int:
    """A whole tensor's payload: see `reference.encode`."""
    sizes = block_sizes(x.size, scheme.log_block)
    if threads.pieces(x.size) == 1:
        whole = backend().encode(scheme, x, scales, classes, widths, keys, out, residual, 0, len(sizes))
        return cast(int, whole)
    starts = _offsets(sizes * widths)
    starts[-1] = len(out)

    def work(lo: int, hi: int) -> int:
        part = out[starts[lo] : starts[hi]]
        return cast(int, backend().encode(scheme, x, scales, classes, widths, keys, part, residual, lo, hi))

    bad = [block for block in _split(scheme, x.size, 0, len(sizes), work) if block >= 0]
    return min(bad, default=-1)


def add(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    lanes: Bytes,
    payloads: Sequence[tuple[Bytes, Bytes]],
    fresh: bool,
    lo: int,
    hi: int,
) -> None:
    """Payloads of blocks lo..hi into lanes: see `reference.add`."""
    if threads.pieces(size) == 1 or backend() is reference:  # which wants buffers of their exact length
        backend().add(scheme, size, classes, lanes, payloads, fresh, lo, hi)
        return
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    lane_starts = _offsets(8 * lane_bytes(scheme, sizes, classes))
    starts = [_offsets(sizes * widths) for _, widths in payloads]

    def work(a: int, b: int) -> int:
        here = slice(a - lo, b - lo)
        parts = [
            (data[begin[a - lo] :], np.ascontiguousarray(widths[here]))
            for begin, (data, widths) in zip(starts, payloads, strict=True)
        ]
        target = lanes[lane_starts[a - lo] :]
        backend().add(scheme, size, np.ascontiguousarray(classes[here]), target, parts, fresh, a, b)
        return 0

    _split(scheme, size, lo, hi, work)


def decode(
    scheme: Scheme,
    lanes: Bytes,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: Floats,
    lo: int,
    hi: int,
) -> None:
    """The mean of blocks lo..hi, at their place in out: see `reference.decode`."""
    sizes = block_sizes(out.size, scheme.log_block)[lo:hi]

    def work(a: int, b: int) -> int:
        part = lanes if a == lo else lanes[lane_bytes(scheme, sizes[: a - lo], classes[lo:a]).sum() :]
        backend().decode(scheme, part, counts, scales, classes, sign_key, out, a, b)
        return 0

    _split(scheme, out.size, lo, hi, work)


def decode_packed(
    scheme: Scheme,
    data: Bytes,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: Floats,
    lo: int,
    hi: int,
) -> None:
    """The same from packed lanes: see `reference.decode_packed`."""
    sizes = block_sizes(out.size, scheme.log_block)[lo:hi]

    def begin(block: int) -> int:
        return payload_bytes(sizes[: block - lo], lane_bits(scheme, classes[lo:block]))

    def work(a: int, b: int) -> int:
        part = data if (a, b) == (lo, hi) else data[begin(a) : begin(b)]
        backend().decode_packed(scheme, part, counts, scales, classes, sign_key, out, a, b)
        return 0

    _split(scheme, out.size, lo, hi, work)


def add_lanes(scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, other: Bytes, lo: int, hi: int) -> None:
    """lanes += other: see `reference.add_lanes`."""
    backend().add_lanes(scheme, size, classes, lanes, other, lo, hi)


def pack_lanes(scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, out: Bytes, lo: int, hi: int) -> None:
    """Lanes from memory to the wire: see `reference.pack_lanes`."""
    backend().pack_lanes(scheme, size, classes, lanes, out, lo, hi)


def unpack_lanes(scheme: Scheme, size: int, classes: Bytes, data: Bytes, lanes: Bytes, lo: int, hi: int) -> None:
    """Lanes from the wire to memory: see `reference.unpack_lanes`."""
    backend().unpack_lanes(scheme, size, classes, data, lanes, lo, hi)


def pack_words(
    scheme: Scheme, size: int, classes: Bytes, lanes: Bytes, out: NDArray[np.int32], lo: int, hi: int
) -> None:
    """A payload's lanes as words that a plain SUM adds: see `reference.pack_words`."""
    backend().pack_words(scheme, size, classes, lanes, out, lo, hi)


def unpack_words(
    scheme: Scheme, size: int, classes: Bytes, data: NDArray[np.int32], count: int, lanes: Bytes, lo: int, hi: int
) -> None:
    """Lanes from summed words: see `reference.unpack_words`."""
    backend().unpack_words(scheme, size, classes, data, count, lanes, lo, hi)


def rotate(x: Floats, log_block: int, key: int, inverse: bool, out: Floats) -> None:
    """Randomised Hadamard of every block: see `reference.rotate`."""
    backend().rotate(x, log_block, key, inverse, out)


def crc32c(data: Bytes, start: int = 0) -> int:
    """CRC-32C of the bytes: see `reference.crc32c`."""
    return cast(int, backend().crc32c(data, start))
