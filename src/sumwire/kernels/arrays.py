"""The arrays that kernels take, and memory that is reused, because fresh pages cost more than the arithmetic."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

AnyArray = NDArray[np.generic]

Bytes = NDArray[np.uint8]

Doubles = NDArray[np.float64]

Floats = NDArray[np.float32]

Ints = NDArray[np.int64]

Words = NDArray[np.uint64]

P = ParamSpec("P")

R = TypeVar("R")


def on_device(array: Any) -> bool:
    """Whether this is a torch tensor, which has as many threads as it needs."""
    return hasattr(array, "data_ptr")


def to_float32(x: AnyArray) -> Floats:
    """float32 of float16, bfloat16 (as uint16), float32 or float64; a float32 array is returned as it is."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32, copy=False)


def fold16(terms: Doubles) -> Doubles:
    """Sums over the last axis, in 16 interleaved accumulators that are folded pairwise."""
    short = -terms.shape[-1] % 16
    padded = np.pad(terms, [(0, 0)] * (terms.ndim - 1) + [(0, short)]).reshape(*terms.shape[:-1], -1, 16)
    fold = np.zeros((*terms.shape[:-1], 16))
    for k in range(padded.shape[-2]):
        fold += padded[..., k, :]
    for half in (8, 4, 2, 1):
        fold = fold[..., :half] + fold[..., half : 2 * half]
    total: Doubles = fold[..., 0]
    return total


class Buffers:
    """Named buffers that only grow."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}
        self._tensors: dict[str, Any] = {}

    def take(self, name: str, size: int, dtype: DTypeLike = np.uint8) -> NDArray[Any]:
        """`size` elements, with whatever they held before."""
        kind = np.dtype(dtype)
        held = self._buffers.get(name)
        if held is None or held.nbytes < size * kind.itemsize:
            # A little more than asked for: payloads of the same tensor vary from round to round.
            held = self._buffers[name] = np.empty(size * kind.itemsize * 9 // 8 + 64, np.uint8)
        return held[: size * kind.itemsize].view(kind)

    def take_tensor(self, name: str, size: int, dtype: DTypeLike, like: Any) -> Any:
        """The same, on the device of a torch tensor: whoever shares them must use one stream."""
        kind = getattr(sys.modules["torch"], np.dtype(dtype).name)
        held = self._tensors.get(name)
        if held is None or held.device != like.device or held.dtype != kind or held.numel() < size:
            held = self._tensors[name] = like.new_empty(size * 9 // 8 + 64, dtype=kind)
        return held[:size]

    @property
    def nbytes(self) -> int:
        return sum(held.nbytes for held in (*self._buffers.values(), *self._tensors.values()))


_local = threading.local()


def thread_buffers() -> Buffers:
    """Scratch memory of the calling thread, kept for its next call."""
    if not hasattr(_local, "buffers"):
        _local.buffers = Buffers()
    buffers: Buffers = _local.buffers
    return buffers


class ByteCache(Generic[P, R]):
    """Calls `make` once per set of arguments and keeps the results while they have at most `limit` bytes in all.

    The least recently used are dropped first. A result that exceeds the limit by itself is never kept.
    """

    def __init__(self, make: Callable[P, R], limit: int, nbytes: Callable[[R], int]) -> None:
        self.limit, self.nbytes = limit, 0
        self._make, self._measure = make, nbytes
        self._held: OrderedDict[object, R] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(sorted(kwargs.items())))
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = self._make(*args, **kwargs)
        size = self._measure(made)
        with self._lock:
            if size <= self.limit and key not in self._held:
                self._held[key] = made
                self.nbytes += size
                while self.nbytes > self.limit:
                    self.nbytes -= self._measure(self._held.popitem(last=False)[1])
        return made

    def __len__(self) -> int:
        return len(self._held)
