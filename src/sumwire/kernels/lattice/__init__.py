"""The kernels of the Lattice codec, spread over threads.

reference.py (narrowing.py for narrow sums, scales.py for terms of one byte per block) defines every one of them; here,
a kernel that takes blocks lo..hi there may take the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sumwire.kernels import threads
from sumwire.kernels.arrays import AnyArray, ByteCache, Bytes, Floats, Ints, on_device
from sumwire.kernels.backend import dispatch
from sumwire.kernels.lattice import blocks, lanes, narrowing, reference, scales, segments, streams
from sumwire.kernels.lattice.scheme import Keys, Scheme
from sumwire.kernels.lattice.segments import Segments

T = TypeVar("T")

block_sizes = ByteCache(blocks.block_sizes, 1 << 26, lambda sizes: sizes.nbytes)
lane_bits = lanes.lane_bits
lane_bytes = lanes.lane_bytes
payload_bytes = blocks.payload_bytes
words = lanes.words
largest_step = scales.largest_step
codes_of = scales.codes_of
join_codes = scales.join_codes
scales_of = scales.scales_of

round_scales = dispatch(scales.round_scales)
allocate = dispatch(reference.allocate)
add_lanes = dispatch(reference.add_lanes)
pack_lanes = dispatch(reference.pack_lanes)
unpack_lanes = dispatch(reference.unpack_lanes)
pack_words = dispatch(reference.pack_words)
unpack_words = dispatch(reference.unpack_words)
rotate = dispatch(reference.rotate)
allocate_sums = dispatch(segments.allocate_sums)
narrow_widths = dispatch(segments.narrow_widths)
gather_blocks = dispatch(streams.gather_blocks)
spread_lanes = dispatch(streams.spread_lanes)

_measure = dispatch(reference.measure)
_encode = dispatch(reference.encode)
_add = dispatch(reference.add)
_narrow = dispatch(narrowing.narrow)
_decode_narrow = dispatch(narrowing.decode_narrow)


def _split(scheme: Scheme, size: int, lo: int, hi: int, work: Callable[[int, int], T]) -> list[T]:
    """Call work(lo, hi) on pieces of the block range, one per thread where that pays."""
    # Cut between whole blocks only: the smaller ones behind them may share bytes.
    whole = max(lo, min(hi, size >> scheme.log_block))
    pieces = threads.pieces((whole - lo) << scheme.log_block)
    if pieces == 1:
        return [work(lo, hi)]
    return threads.run_between([lo + (whole - lo) * k // pieces for k in range(pieces)] + [hi], work)


def _offsets(bits: NDArray[np.integer[Any]]) -> Ints:
    """Where each block's bytes begin, given its bits; exact for whole blocks, which have whole bytes."""
    out = np.zeros(len(bits) + 1, np.int64)
    np.cumsum(bits, out=out[1:])
    return out >> 3


def measure(x: AnyArray, scheme: Scheme, out: Floats) -> None:
    """The scale of every block: see `reference.measure`."""
    if on_device(x):
        _measure(x, scheme, out, 0, len(out))
        return
    _split(scheme, x.size, 0, len(out), lambda lo, hi: _measure(x, scheme, out[lo:hi], lo, hi))


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
    if on_device(x) or threads.pieces(x.size) == 1:
        return _encode(scheme, x, scales, classes, widths, keys, out, residual, 0, len(classes))
    sizes = block_sizes(x.size, scheme.log_block)
    starts = _offsets(sizes * widths)
    starts[-1] = len(out)

    def work(lo: int, hi: int) -> int:
        return _encode(scheme, x, scales, classes, widths, keys, out[starts[lo] : starts[hi]], residual, lo, hi)

    return min((block for block in _split(scheme, x.size, 0, len(sizes), work) if block >= 0), default=-1)


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
    if on_device(lanes) or threads.pieces((hi - lo) << scheme.log_block) == 1:
        _add(scheme, size, classes, lanes, payloads, fresh, lo, hi)
        return
    sizes = block_sizes(size, scheme.log_block)[lo:hi]
    lane_starts = _offsets(8 * lane_bytes(scheme, sizes, classes))
    starts = [_offsets(sizes * widths) for _, widths in payloads]

    def work(a: int, b: int) -> None:
        here = slice(a - lo, b - lo)
        parts = [
            (data[begin[a - lo] :], np.ascontiguousarray(widths[here]))
            for begin, (data, widths) in zip(starts, payloads, strict=True)
        ]
        target = lanes[lane_starts[a - lo] : lane_starts[b - lo]]
        _add(scheme, size, np.ascontiguousarray(classes[here]), target, parts, fresh, a, b)

    _split(scheme, size, lo, hi, work)


Decode = Callable[[Scheme, Bytes, NDArray[np.int32], Floats, Bytes, int, Floats, int, int], None]


def _in_pieces(kernel: Decode, nbytes: Callable[[Scheme, Ints, Bytes], int]) -> Decode:
    """A decoder on several threads; nbytes(scheme, sizes, classes) is the length of these blocks in its input."""

    @wraps(kernel)
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
        if on_device(out):
            kernel(scheme, lanes, counts, scales, classes, sign_key, out, lo, hi)
            return
        sizes = block_sizes(out.size, scheme.log_block)

        def work(a: int, b: int) -> None:
            part = lanes if a == lo else lanes[nbytes(scheme, sizes[lo:a], classes[lo:a]) :]
            kernel(scheme, part, counts, scales, classes, sign_key, out, a, b)

        _split(scheme, out.size, lo, hi, work)

    return decode


decode = _in_pieces(
    dispatch(reference.decode), lambda scheme, sizes, classes: int(lane_bytes(scheme, sizes, classes).sum())
)
decode_packed = _in_pieces(
    dispatch(reference.decode_packed),
    lambda scheme, sizes, classes: payload_bytes(sizes, lane_bits(scheme, classes)),
)


def _split_segments(scheme: Scheme, cut: Segments, lo: int, hi: int, work: Callable[[int, int], None]) -> None:
    """As `_split`, between segments."""
    inner = cut.edges[cut.between(lo, hi)]
    pieces = min(threads.pieces((hi - lo) << scheme.log_block), max(len(inner), 1))
    threads.run_between([lo, *(int(inner[len(inner) * k // pieces]) for k in range(1, pieces)), hi], work)


def narrow(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    scales: Floats,
    counts: NDArray[np.int32],
    lanes: Bytes,
    cut: Segments,
    coarse: Bytes,
    fine: Bytes,
    data: Bytes,
    lo: int,
    hi: int,
) -> None:
    """Blocks lo..hi of a complete sum: see `narrowing.narrow`."""
    if on_device(lanes) or threads.pieces((hi - lo) << scheme.log_block) == 1:
        _narrow(scheme, size, classes, scales, counts, lanes, cut, coarse, fine, data, lo, hi)
        return
    sizes = block_sizes(size, scheme.log_block)
    first = cut.bytes_at[cut.between(lo, hi).start]

    def work(a: int, b: int) -> None:
        here, which = slice(a - lo, b - lo), cut.between(a, b)
        own = lanes[int(lane_bytes(scheme, sizes[lo:a], classes[lo:a]).sum()) :]
        part = data[cut.bytes_at[which.start] - first : cut.bytes_at[which.stop] - first]
        _narrow(scheme, size, classes, scales, counts[here], own, cut, coarse[here], fine[here], part, a, b)

    _split_segments(scheme, cut, lo, hi, work)


def decode_narrow(
    scheme: Scheme,
    coarse: Bytes,
    fine: Bytes,
    widths: Bytes,
    data: Bytes,
    cut: Segments,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: Floats,
    lo: int,
    hi: int,
) -> None:
    """The mean of blocks lo..hi: see `narrowing.decode_narrow`."""
    if on_device(out) or threads.pieces((hi - lo) << scheme.log_block) == 1:
        _decode_narrow(scheme, coarse, fine, widths, data, cut, counts, scales, classes, sign_key, out, lo, hi)
        return
    first = cut.bytes_at[cut.between(lo, hi).start]

    def work(a: int, b: int) -> None:
        here, which = slice(a - lo, b - lo), cut.between(a, b)
        part = data[cut.bytes_at[which.start] - first : cut.bytes_at[which.stop] - first]
        _decode_narrow(
            scheme, coarse[here], fine[here], widths[here], part, cut, counts, scales, classes, sign_key, out, a, b
        )

    _split_segments(scheme, cut, lo, hi, work)
