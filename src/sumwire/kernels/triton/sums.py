"""Sums of a Lattice on a device, with the signatures of kernels/lattice/lanes.py and narrowing.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes, Floats, Ints
from sumwire.kernels.backend import dispatch
from sumwire.kernels.lattice.blocks import starts_of
from sumwire.kernels.lattice.lanes import lane_bits, lane_bytes
from sumwire.kernels.lattice.narrow_tables import CELLS, QUANTIZERS
from sumwire.kernels.lattice.scheme import MAX_BITS, Scheme
from sumwire.kernels.lattice.segments import MANTISSAS, Segments, coarse_value, fine_value
from sumwire.kernels.lattice.segments import narrow_widths as defined_widths
from sumwire.kernels.triton import large_decode, large_narrow
from sumwire.kernels.triton.lanes import add_kernel, add_lanes_kernel, pack_kernel
from sumwire.kernels.triton.launch import Span, signed, upload, with_tail
from sumwire.kernels.triton.narrow import coarse_kernel, decode_narrow_kernel, narrow_kernel
from sumwire.kernels.triton.parts import Parts
from sumwire.kernels.triton.scheme import device_scheme, widest_plane

_widths = dispatch(defined_widths)

PATTERNED = 8
"""Blocks per program where random patterns are shared."""


def add(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    lanes: torch.Tensor,
    payloads: Sequence[tuple[torch.Tensor, Bytes]],
    fresh: bool,
    lo: int,
    hi: int,
) -> None:
    """See `reference.add`."""
    (span, parts), on = Span.of_parts(size, scheme.log_block, lo, hi), device_scheme(scheme, lanes)
    if not payloads:
        if fresh:
            lanes.zero_()
        return
    classes, widths = classes.repeat(parts), np.stack([widths.repeat(parts) for _, widths in payloads])
    arrays = (
        classes,
        np.array([data.data_ptr() for data, _ in payloads], np.int64),
        np.stack([starts_of(span.sizes * own)[:-1] for own in widths]),
        widths,
    )
    span.launch(
        add_kernel,
        lanes, _lanes_at(scheme, span, classes, lanes), *(upload(array, lanes) for array in arrays),
        on.ints, on.values, on.values_at, len(classes), len(payloads), FRESH=fresh,
    )  # fmt: skip


def add_lanes(
    scheme: Scheme, size: int, classes: Bytes, lanes: torch.Tensor, other: torch.Tensor, lo: int, hi: int
) -> None:
    """See `reference.add_lanes`."""
    (span, parts), on = Span.of_parts(size, scheme.log_block, lo, hi), device_scheme(scheme, lanes)
    classes = classes.repeat(parts)
    at = _lanes_at(scheme, span, classes, lanes)
    span.launch(add_lanes_kernel, lanes, other, at, upload(classes, lanes), on.ints)


def pack_lanes(
    scheme: Scheme, size: int, classes: Bytes, lanes: torch.Tensor, out: torch.Tensor, lo: int, hi: int
) -> None:
    """See `reference.pack_lanes`."""
    _pack(scheme, size, classes, lanes, out, lo, hi, unpack=False)


def unpack_lanes(
    scheme: Scheme, size: int, classes: Bytes, data: torch.Tensor, lanes: torch.Tensor, lo: int, hi: int
) -> None:
    """See `reference.unpack_lanes`."""
    _pack(scheme, size, classes, lanes, data, lo, hi, unpack=True)


def _pack(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    lanes: torch.Tensor,
    packed: torch.Tensor,
    lo: int,
    hi: int,
    *,
    unpack: bool,
) -> None:
    (span, parts), on = Span.of_parts(size, scheme.log_block, lo, hi), device_scheme(scheme, lanes)
    classes = classes.repeat(parts)
    bits_at = starts_of(span.sizes * lane_bits(scheme, classes))
    per_block = _lanes_at(scheme, span, classes, lanes), upload(classes, lanes), upload(bits_at, lanes)

    def work(words: torch.Tensor) -> None:
        span.launch(
            pack_kernel, lanes, *per_block, on.ints, packed, words, UNPACK=unpack, WIDEST=widest_plane(on.widest_lane)
        )

    if unpack:
        work(packed)
    else:
        with_tail(span, bits_at, packed, work)


def _lanes_at(scheme: Scheme, span: Span, classes: Bytes, like: torch.Tensor) -> torch.Tensor:
    return upload(starts_of(lane_bytes(scheme, span.sizes, classes)), like)


@cache
def _tables(device: torch.device) -> dict[str, torch.Tensor]:
    """Quantizers of narrow sums by width, and what `coarse` and `fine` stand for."""
    half = 1 << MAX_BITS - 1
    magnitudes = np.zeros((MAX_BITS + 1, CELLS), np.uint8)
    levels = np.zeros((MAX_BITS + 1, 2 * half), np.int32)
    numbers = np.zeros((MAX_BITS + 1, 2))
    lines = np.zeros((MAX_BITS + 1, 5, 2), np.int32)
    for width, quantizer in QUANTIZERS.items():
        above = quantizer.level_array
        levels[width, half : half + len(above)], levels[width, half - len(above) : half] = above, -above[::-1]
        numbers[width] = quantizer.density, quantizer.unit
        if quantizer.by_cell:
            magnitudes[width] = quantizer.magnitudes
        else:
            lines[width] = np.stack([quantizer.slopes, quantizer.offsets], axis=1)
    codes, like = np.arange(256, dtype=np.uint8), torch.empty(0, device=device)
    named: dict[str, NDArray[Any]] = {"magnitudes": magnitudes, "levels": levels, "numbers": numbers, "lines": lines}
    named |= {"coarse": coarse_value(codes), "fine": fine_value(codes), "mantissas": MANTISSAS.astype(np.int32)}
    return {name: upload(array, like) for name, array in named.items()}


def narrow_widths(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    scales: Floats,
    coarse: torch.Tensor,
    segments: Segments,
    out: Bytes,
    lo: int,
    hi: int,
) -> None:
    """See `segments.narrow_widths`, which the host computes from one byte per block. Waits for the device."""
    _widths(scheme, size, classes, scales, coarse.cpu().numpy(), segments, out, lo, hi)


def narrow(
    scheme: Scheme,
    size: int,
    classes: Bytes,
    scales: Floats,
    counts: NDArray[np.int32],
    lanes: torch.Tensor,
    segments: Segments,
    coarse: torch.Tensor,
    fine: torch.Tensor,
    data: torch.Tensor,
    lo: int,
    hi: int,
) -> None:
    """See `narrowing.narrow`. Waits for one byte per block, because widths are chosen on the host."""
    span, on, tables = Span.of(size, scheme.log_block, lo, hi), device_scheme(scheme, lanes), _tables(lanes.device)
    here = classes[lo:hi]
    shared = (lanes, _lanes_at(scheme, span, here, lanes), upload(here, lanes), upload(counts, lanes))
    parts = Parts.of(span, lanes)
    span.launch(coarse_kernel, *shared, on.ints, on.floats, tables["mantissas"], coarse)
    if parts is not None:
        squares = large_narrow.coarse(on, parts, shared, tables["mantissas"], coarse)
    widths = np.empty(hi - lo, np.uint8)
    narrow_widths(scheme, size, classes, scales, coarse, segments, widths, lo, hi)
    bits_at, widest = _bits_at(segments, span, widths), widest_plane(max(on.widest_lane, MAX_BITS))
    chosen = upload(widths, lanes), upload(bits_at, lanes)
    fine.zero_()
    data.zero_()

    def work(words: torch.Tensor) -> None:
        span.launch(
            narrow_kernel,
            *shared, *chosen, on.ints, on.floats, coarse, tables["coarse"], tables["magnitudes"], tables["levels"],
            tables["numbers"], tables["lines"], fine, data, words, WIDEST=widest,
        )  # fmt: skip
        if parts is not None:
            large_narrow.narrow(on, parts, shared, squares, *chosen, coarse, tables, fine, data, widest)

    with_tail(span, bits_at, data, work)


def _bits_at(segments: Segments, span: Span, widths: Bytes) -> Ints:
    bits = span.sizes * widths
    starts = segments.bit_starts(bits, span.lo, span.hi)
    return np.append(starts, starts[-1:] + bits[-1:]) if len(bits) else np.zeros(1, np.int64)


def decode_narrow(
    scheme: Scheme,
    coarse: torch.Tensor,
    fine: torch.Tensor,
    widths: Bytes,
    data: torch.Tensor,
    segments: Segments,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: torch.Tensor,
    lo: int,
    hi: int,
) -> None:
    """See `narrowing.decode_narrow`."""
    span, on, tables = Span.of(len(out), scheme.log_block, lo, hi), device_scheme(scheme, out), _tables(out.device)
    first = [upload(array, out) for array in (_bits_at(segments, span, widths), widths)]
    per_block: list[Any] = [upload(array[lo:hi], out) for array in (scales, classes, counts)]
    arguments = (
        data, *first, coarse, fine, *per_block, on.ints, on.floats, on.roots, tables["coarse"], tables["fine"],
        tables["levels"], tables["numbers"],
    )  # fmt: skip
    widest = widest_plane(max(on.widest_lane, MAX_BITS))
    span.launch(
        decode_narrow_kernel,
        *arguments, out, signed(sign_key), per_program=PATTERNED,
        WIDE=on.widest_lane + span.log_block > 30, WIDEST=widest, ROTATE=scheme.rotate,
    )  # fmt: skip
    if (parts := Parts.of(span, out)) is not None:
        begin = int(span.starts[0])
        large_decode.decode_narrow(scheme, on, parts, arguments, per_block[0], signed(sign_key), out, begin, widest)
