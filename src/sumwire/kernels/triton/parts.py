"""Blocks that no program holds, rotated in two launches: H of 2**L is H across parts times H within each part.

A *part* is a run of 2048 coordinates. `Parts.within` runs a program per part, which does the stages of distances below
2048. `Parts.across` runs a program per strip: some columns of all parts of a block, for the other stages. Between the
two, coordinates lie in scratch memory as integers, so the order of launches does not change a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from sumwire.kernels.lattice.scheme import DEVICE_LOG_BLOCK
from sumwire.kernels.triton.launch import Span, upload

LOG_PART = tl.constexpr(DEVICE_LOG_BLOCK)
PART = tl.constexpr(1 << DEVICE_LOG_BLOCK)

LOG_STRIP = tl.constexpr(12)
STRIP = tl.constexpr(1 << 12)
"""Coordinates of a strip. Of the largest blocks it has 8 columns: 32 bytes, which is what a GPU fetches at least."""

_WARPS = 8


@triton.jit
def lanes_of(strip, BLOCK: tl.constexpr):
    """The coordinates of a strip of a block: the same columns of part after part."""
    COLUMNS: tl.constexpr = PART * STRIP // BLOCK
    place = tl.arange(0, STRIP)
    return place // COLUMNS * PART + strip * COLUMNS + place % COLUMNS


@dataclass(frozen=True)
class Parts:
    """The large blocks of a span, which come first, on a device."""

    sizes: list[int]
    owners: torch.Tensor
    """The block of each part, counted as the span does."""
    logs: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def of(cls, span: Span, like: torch.Tensor) -> Parts | None:
        """None if the span has no large blocks."""
        sizes = span.sizes[: span.large - span.lo]
        if not len(sizes):
            return None
        owners = np.arange(len(sizes), dtype=np.int32).repeat(sizes >> DEVICE_LOG_BLOCK)
        logs = np.log2(sizes).astype(np.int32)
        return cls(sizes.tolist(), upload(owners, like), upload(logs, like), upload(span.starts[: len(sizes)], like))

    @property
    def coordinates(self) -> int:
        return sum(self.sizes)

    @property
    def largest_log(self) -> int:
        return max(self.sizes).bit_length() - 1

    def scratch(self, wide: bool = False) -> torch.Tensor:
        """An integer per coordinate, of 32 or 64 bits, with whatever was there."""
        kind = torch.int64 if wide else torch.int32
        return torch.empty(self.coordinates, dtype=kind, device=self.owners.device)

    def per_block(self, dtype: torch.dtype) -> torch.Tensor:
        """A zero for each block."""
        return torch.zeros(len(self.sizes), dtype=dtype, device=self.owners.device)

    def within(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """kernel(*args, owners, logs, starts), a program per part."""
        self._run(kernel, len(self.owners), *args, self.owners, self.logs, self.starts, warps=_WARPS, **constants)

    def each(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """kernel(*args, logs, starts), a program per block."""
        self._run(kernel, len(self.sizes), *args, self.logs, self.starts, warps=1, **constants)

    def across(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """kernel(*args, starts, first), a program per strip: once for each size of blocks, numbered from `first`."""
        for size in sorted(set(self.sizes)):
            strips = self.sizes.count(size) * (size >> LOG_STRIP.value)
            first, log = self.sizes.index(size), size.bit_length() - 1
            self._run(kernel, strips, *args, self.starts, first, warps=_WARPS, BLOCK=size, LOG=log, **constants)

    def _run(self, kernel: Any, programs: int, *args: Any, warps: int, **constants: Any) -> None:
        kernel[(programs,)](*args, **constants, num_warps=warps, enable_fp_fusion=False)
