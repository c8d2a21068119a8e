"""The Sparse codec's kernels on a device, with the signatures of kernels/sparse/reference.py.

x, values and out are torch tensors, words a tensor of int64; starts and sizes come from the host. Integers and one
division in float32 (div.rn), so bits are the reference's.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from sumwire.kernels.arrays import Ints
from sumwire.kernels.sparse.reference import bits
from sumwire.kernels.triton.launch import upload

WORDS = 16
"""Words of a bitmap per program: 1024 coordinates."""

_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
_RAW = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _coordinates(starts, total, BLOCK: tl.constexpr, WORDS: tl.constexpr):
    """Where a program's coordinates lie in the tensor, in rows of 64, and which of them there are."""
    at = (tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS))[:, None] * 64 + tl.arange(0, 64)[None, :]
    inside = at < total
    return tl.load(starts + at // BLOCK, mask=inside, other=0) + at % BLOCK, inside


@triton.jit
def _flags(words, count, inside, WORDS: tl.constexpr):
    """One int32 per coordinate, and how many are set before each of this program's."""
    row = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    word = tl.load(words + row, mask=row < count, other=0)
    flags = (((word[:, None] >> tl.arange(0, 64)[None, :].to(tl.int64)) & 1) != 0) & inside
    flat = tl.reshape(flags.to(tl.int32), [WORDS * 64])
    return flags, tl.reshape(tl.cumsum(flat, axis=0) - flat, [WORDS, 64])


@triton.jit(do_not_specialize=["total", "count"])
def scan_kernel(x, starts, words, counts, total, count, BLOCK: tl.constexpr, WORDS: tl.constexpr):
    """The bitmap, and the number of bits that each program set. x is seen as integers."""
    at, inside = _coordinates(starts, total, BLOCK, WORDS)
    flags = tl.load(x + at, mask=inside, other=0) != 0
    word = tl.sum(flags.to(tl.int64) << tl.arange(0, 64)[None, :].to(tl.int64), axis=1)
    row = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    tl.store(words + row, word, mask=row < count)
    tl.store(counts + tl.program_id(0), tl.sum(tl.sum(flags.to(tl.int32), axis=1), axis=0))


@triton.jit(do_not_specialize=["total", "count"])
def count_kernel(words, counts, total, count, WORDS: tl.constexpr):
    """The number of bits set in each program's words."""
    row = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    word = tl.load(words + row, mask=row < count, other=0)
    coordinate = row.to(tl.int64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    flags = ((word[:, None] >> tl.arange(0, 64)[None, :].to(tl.int64)) & 1).to(tl.int32)
    flags = tl.where(coordinate < total, flags, 0)
    tl.store(counts + tl.program_id(0), tl.sum(tl.sum(flags, axis=1), axis=0))


@triton.jit(do_not_specialize=["total", "count", "room"])
def compact_kernel(
    x, starts, words, begins, values, total, count, room, BLOCK: tl.constexpr, WORDS: tl.constexpr
):  # fmt: skip
    """values = x at the set bits, from each program's begin."""
    at, inside = _coordinates(starts, total, BLOCK, WORDS)
    flags, before = _flags(words, count, inside, WORDS)
    target = tl.load(begins + tl.program_id(0)) + before
    tl.store(values + target, tl.load(x + at, mask=flags, other=0), mask=flags & (target < room))


@triton.jit(do_not_specialize=["total", "count"])
def expand_kernel(
    words, values, starts, begins, out, divisor, total, count,
    DIVIDE: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """out = values / divisor at the set bits, +0.0 elsewhere. values and out are seen as int32."""
    at, inside = _coordinates(starts, total, BLOCK, WORDS)
    flags, before = _flags(words, count, inside, WORDS)
    raw = tl.load(values + tl.load(begins + tl.program_id(0)) + before, mask=flags, other=0)
    if DIVIDE:
        value = raw.to(tl.float32, bitcast=True)
        scaled = tl.div_rn(value, tl.zeros_like(value) + tl.load(divisor)).to(tl.int32, bitcast=True)
        # A NaN keeps its bits but becomes quiet, as on x86; a GPU's division would replace it.
        nan = (raw & 0x7FFFFFFF) > 0x7F800000
        raw = tl.where(flags, tl.where(nan, raw | 0x400000, scaled), 0)
    tl.store(out + at, raw, mask=inside)


def _raw(x: torch.Tensor) -> torch.Tensor:
    return x.view(_RAW[x.element_size()])


def _programs(words: torch.Tensor) -> int:
    return -(-len(words) // WORDS)


def _begins(counts: torch.Tensor) -> torch.Tensor:
    """Where each program's values begin; and where the last ones end."""
    begins = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=begins[1:])
    return begins


def _counted(words: torch.Tensor, total: int) -> torch.Tensor:
    counts = torch.zeros(_programs(words), dtype=torch.int32, device=words.device)
    if len(words):
        count_kernel[(len(counts),)](words, counts, total, len(words), WORDS=WORDS, **_OPTIONS)
    return _begins(counts)


def scan(x: torch.Tensor, starts: Ints, block: int, words: torch.Tensor) -> None:
    """See `reference.scan`."""
    _scan(x, starts, block, words)


def _scan(x: torch.Tensor, starts: Ints, block: int, words: torch.Tensor) -> torch.Tensor:
    counts = torch.zeros(_programs(words), dtype=torch.int32, device=x.device)
    total = bits(starts, block, len(x))
    if len(words):
        scan_kernel[(len(counts),)](
            _raw(x), upload(starts, x), words, counts, total, len(words), BLOCK=block, WORDS=WORDS, **_OPTIONS
        )
    return _begins(counts)


def compact(x: torch.Tensor, starts: Ints, block: int, words: torch.Tensor, values: torch.Tensor) -> int:
    """See `reference.compact`. Waits for the device, to tell the count."""
    return _compact(x, starts, block, words, values, _counted(words, bits(starts, block, len(x))))


def gather(x: torch.Tensor, starts: Ints, block: int, words: torch.Tensor, values: torch.Tensor) -> int:
    """See `reference.gather`: x is read twice, the second time only where it is not zero."""
    return _compact(x, starts, block, words, values, _scan(x, starts, block, words))


def _compact(
    x: torch.Tensor, starts: Ints, block: int, words: torch.Tensor, values: torch.Tensor, begins: torch.Tensor
) -> int:
    if len(words):
        compact_kernel[(_programs(words),)](
            _raw(x), upload(starts, x), words, begins, _raw(values), bits(starts, block, len(x)), len(words),
            len(values), BLOCK=block, WORDS=WORDS, **_OPTIONS,
        )  # fmt: skip
    return int(begins[-1].item())


def expand(
    words: torch.Tensor,
    values: torch.Tensor,
    starts: Ints,
    block: int,
    out: torch.Tensor,
    divisor: float = 1.0,
    clean: bool = False,
) -> None:
    """See `reference.expand`. Zeros are written even where `clean` says that they are there."""
    total = bits(starts, block, len(out))
    if not len(words):
        return
    by = np.float32(divisor)
    expand_kernel[(_programs(words),)](
        words, _raw(values), upload(starts, out), _counted(words, total), _raw(out), upload(np.array([by]), out), total,
        len(words), DIVIDE=bool(by != 1), BLOCK=block, WORDS=WORDS, **_OPTIONS,
    )  # fmt: skip
