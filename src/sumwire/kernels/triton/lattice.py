"""The Lattice codec's kernels on a device, with the signatures of kernels/lattice/reference.py.

x, payload bytes, lanes, residual and out are torch tensors of one device; what has a number per block is NumPy's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.kernels.arrays import Bytes, Floats
from sumwire.kernels.lattice.blocks import starts_of
from sumwire.kernels.lattice.lanes import lane_bits, lane_bytes
from sumwire.kernels.lattice.scheme import Keys, Scheme
from sumwire.kernels.triton import large_decode, large_encode
from sumwire.kernels.triton.decode import decode_kernel
from sumwire.kernels.triton.encode import encode_kernel
from sumwire.kernels.triton.launch import Span, download, signed, upload, with_tail
from sumwire.kernels.triton.measure import measure_kernel, measure_large_kernel
from sumwire.kernels.triton.parts import Parts
from sumwire.kernels.triton.scheme import device_scheme, widest_plane
from sumwire.kernels.triton.sums import (
    PATTERNED,
    add,
    add_lanes,
    decode_narrow,
    narrow,
    narrow_widths,
    pack_lanes,
    unpack_lanes,
)

__all__ = [
    "add",
    "add_lanes",
    "decode",
    "decode_narrow",
    "decode_packed",
    "encode",
    "measure",
    "narrow",
    "narrow_widths",
    "pack_lanes",
    "unpack_lanes",
]

_NO_BLOCK = np.iinfo(np.int32).max


def measure(x: torch.Tensor, scheme: Scheme, out: Any, lo: int, hi: int) -> None:
    """See `reference.measure`; `out` is a host array or a tensor."""
    span = Span.of(len(x), scheme.log_block, lo, hi)
    scales = torch.empty(hi - lo, dtype=torch.float32, device=x.device)
    span.launch(measure_kernel, x, scales, per_program=32, ROTATE=scheme.rotate)
    if (parts := Parts.of(span, x)) is not None:
        parts.each(measure_large_kernel, x, scales, ROTATE=scheme.rotate)
    download(scales, out)


def encode(
    scheme: Scheme,
    x: torch.Tensor,
    scales: Floats,
    classes: Bytes,
    widths: Bytes,
    keys: Keys,
    out: torch.Tensor,
    residual: torch.Tensor | None,
    lo: int,
    hi: int,
) -> int:
    """See `reference.encode`. Waits for the device, to tell which block its terms do not cover."""
    span, on = Span.of(len(x), scheme.log_block, lo, hi), device_scheme(scheme, x)
    bits_at = starts_of(span.sizes * widths[lo:hi])
    bad = torch.full((1,), _NO_BLOCK, dtype=torch.int32, device=x.device)
    per_block = [upload(array, x) for array in (scales[lo:hi], classes[lo:hi], widths[lo:hi], bits_at)]
    streams = [signed(key) for key in (keys.sign, keys.noise, keys.dither, keys.shift)]

    def work(words: torch.Tensor) -> None:
        span.launch(
            encode_kernel,
            x, *per_block, on.ints, on.floats, on.limits, on.gains, on.roots, on.corrections, on.cells, on.cells_at,
            out, words, x if residual is None else residual, bad, *streams, lo,
            per_program=PATTERNED, large=True, ROTATE=scheme.rotate, RESIDUAL=residual is not None,
        )  # fmt: skip
        if (parts := Parts.of(span, x)) is not None:
            named = dict(zip(("sign", "noise", "dither", "shift"), streams, strict=True))
            large_encode.encode(scheme, on, parts, x, per_block, named, out, residual, bad, lo)

    with_tail(span, bits_at, out, work)
    found = int(bad.item())
    return -1 if found == _NO_BLOCK else lo + found


def decode(
    scheme: Scheme,
    lanes: torch.Tensor,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: torch.Tensor,
    lo: int,
    hi: int,
) -> None:
    """See `reference.decode`."""
    _decode(scheme, lanes, counts, scales, classes, sign_key, out, lo, hi, packed=False)


def decode_packed(
    scheme: Scheme,
    data: torch.Tensor,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: torch.Tensor,
    lo: int,
    hi: int,
) -> None:
    """See `reference.decode_packed`."""
    _decode(scheme, data, counts, scales, classes, sign_key, out, lo, hi, packed=True)


def _decode(
    scheme: Scheme,
    data: torch.Tensor,
    counts: NDArray[np.int32],
    scales: Floats,
    classes: Bytes,
    sign_key: int,
    out: torch.Tensor,
    lo: int,
    hi: int,
    *,
    packed: bool,
) -> None:
    span, on = Span.of(len(out), scheme.log_block, lo, hi), device_scheme(scheme, out)
    here = classes[lo:hi]
    lengths = span.sizes * lane_bits(scheme, here) if packed else lane_bytes(scheme, span.sizes, here)
    per_block = [upload(array, out) for array in (starts_of(lengths), scales[lo:hi], here, counts[lo:hi])]
    span.launch(
        decode_kernel,
        data, *per_block, on.ints, on.floats, on.roots, out, signed(sign_key),
        per_program=PATTERNED, PACKED=packed, WIDE=on.widest_lane + span.log_block > 30,
        WIDEST=widest_plane(on.widest_lane), ROTATE=scheme.rotate,
    )  # fmt: skip
    if (parts := Parts.of(span, out)) is not None:
        begin = int(span.starts[0])
        large_decode.decode(scheme, on, parts, data, per_block, signed(sign_key), out, begin, packed=packed)
