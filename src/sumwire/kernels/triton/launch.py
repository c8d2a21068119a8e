"""How kernels are launched: tensors of small host arrays, whole blocks and smaller ones, and every launch's options.

What no program can hold goes in parts: parts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.kernels.arrays import Ints
from sumwire.kernels.lattice.blocks import block_sizes, starts_of
from sumwire.kernels.lattice.scheme import DEVICE_LOG_BLOCK

LANES_PER_WARP = 128
"""Coordinates that a warp holds, where 8 warps suffice: with more, registers of sm_90 and sm_100 would spill."""


def options(block: int, tail: bool) -> dict[str, Any]:
    """Of a launch. Without contraction into FMA, which would change bits; packing bit by bit takes more registers."""
    warps = min(16, max(2, 2 * block // LANES_PER_WARP)) if tail else min(8, max(1, block // LANES_PER_WARP))
    return {"num_warps": warps, "enable_fp_fusion": False}


def many_registers() -> dict[str, Any]:
    """An option of NVIDIA's compiler, for kernels that sm_100's would spill rather than give more than 168 each."""
    return {} if torch.version.hip else {"maxnreg": 224}


def upload(array: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """A small host array on the device of `like`."""
    host = torch.from_numpy(np.array(array))  # a copy: what it is made of may be read-only
    return host if like.device.type == "cpu" else host.to(like.device, non_blocking=True)


def download(tensor: torch.Tensor, out: Any) -> None:
    """A small tensor into `out`, a host array or a tensor of the same device."""
    if isinstance(out, torch.Tensor):
        out.copy_(tensor)
    else:
        out[...] = tensor.cpu().numpy()


def signed(key: int) -> int:
    """A 32-bit key as the int32 that a kernel takes."""
    return (key & 0xFFFFFFFF) - (key >> 31 << 32)


@dataclass(frozen=True)
class Span:
    """Blocks lo..hi of a tensor: those larger than a program holds, whole ones, and smaller ones behind them."""

    log_block: int
    """Of a whole block, which one program holds."""
    lo: int
    large: int
    """End of the large blocks, in lo..hi: see parts.py."""
    whole: int
    """End of the whole blocks."""
    hi: int
    sizes: Ints
    """Of blocks lo..hi."""
    starts: Ints
    """First coordinate of each."""

    @classmethod
    def of(cls, size: int, log_block: int, lo: int, hi: int) -> Span:
        sizes, log = block_sizes(size, log_block), min(log_block, DEVICE_LOG_BLOCK)
        large = max(lo, min(hi, int(np.count_nonzero(sizes > 1 << log))))
        whole = max(lo, min(hi, int(np.count_nonzero(sizes >= 1 << log))))
        return cls(log, lo, large, whole, hi, sizes[lo:hi], starts_of(sizes)[lo:hi])

    @classmethod
    def of_parts(cls, size: int, log_block: int, lo: int, hi: int) -> tuple[Span, Ints]:
        """The same with large blocks cut into whole ones, for kernels that take lanes one by one.

        Also how many each of blocks lo..hi became. Lanes and bits lie where they did: groups of them are smaller.
        """
        log = min(log_block, DEVICE_LOG_BLOCK)
        parts = np.maximum(block_sizes(size, log_block) >> log, 1)
        first, count = int(parts[:lo].sum()), int(parts[lo:hi].sum())
        return cls.of(size, log, first, first + count), parts[lo:hi]

    @property
    def first_small(self) -> int:
        """The first smaller block, counted from lo."""
        return self.whole - self.lo

    def launch(self, kernel: Any, *args: Any, per_program: int = 1, large: bool = False, **constants: Any) -> None:
        """kernel(*args, logs, starts, first, count): once for whole blocks and once for smaller ones, if any.

        Not for large ones.

        `first` and `count` number blocks from lo. Per-block tensors hold blocks lo..hi. `large` says that the kernel
        needs many registers.
        """
        tensors = next(arg for arg in args if isinstance(arg, torch.Tensor))
        logs = upload(np.log2(self.sizes).astype(np.int32), tensors)
        starts = upload(self.starts, tensors)
        for tail, first, count in (
            (False, self.large - self.lo, self.whole - self.large),
            (True, self.first_small, self.hi - self.whole),
        ):
            if count:
                each = 1 if tail else per_program
                log = self.log_block - tail  # smaller blocks have half at most
                chosen = options(1 << log, tail) | (many_registers() if large and not tail else {})
                kernel[(-(-count // each),)](
                    *args, logs, starts, first, count, BLOCK=1 << log, LOG=log, TAIL=tail, EACH=each,
                    **constants, **chosen,
                )  # fmt: skip


def with_tail(span: Span, bits_at: Ints, out: torch.Tensor, work: Callable[[torch.Tensor], None]) -> None:
    """work(words) with zeroed words for the bits of smaller blocks, which then go into `out`.

    bits_at says where each of blocks lo..hi begins in `out`, and where the last one ends; the first smaller one begins
    a byte.
    """
    begin, end = int(bits_at[span.first_small]), int(bits_at[-1])
    words = torch.zeros(-(-(end - begin) // 32) or 1, dtype=torch.int32, device=out.device)
    work(words)
    if end > begin:
        nbytes = -(-(end - begin) // 8)
        out[begin // 8 : begin // 8 + nbytes] = words.view(torch.uint8)[:nbytes]
