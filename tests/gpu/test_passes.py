"""How often each kernel goes over memory, counted while Triton's interpreter runs it.

A byte that one instruction loads for several coordinates counts once: a GPU fetches it once. Tables and arrays of one
number per block do not count. Scratch memory does, for the kernel that writes it and for the one that reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import sumwire

pytest.importorskip("triton", reason='Triton is not installed: pip install ".[gpu]"')
calls = pytest.importorskip("benchmarks.gpu_calls")
Parts = pytest.importorskip("sumwire.kernels.triton.parts").Parts

MOST = 1.3
SIZE = 1024  # whole blocks
LARGE = 1 << 12
"""A block that goes in parts."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def passes(call: partial[object]) -> dict[str, float]:
    """By kernel: bytes that it loads and stores, over the length of the tensors that it loads and stores."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.interpreter import interpreter_builder as builder

    spans = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors_in(call.args) if tensor.nbytes > SIZE // 16]
    scratch, kept = Parts.scratch, []  # kept, so that no two have the same address
    moved: defaultdict[str, defaultdict[tuple[str, int], int]] = defaultdict(lambda: defaultdict(int))
    running: list[str] = []
    run, load, store = InterpretedFunction.run, builder.create_masked_load, builder.create_masked_store

    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        running.append(self.fn.__name__)
        try:
            return run(self, *args, **kwargs)
        finally:
            running.pop()

    def count(kind: str, pointers: Any, mask: Any) -> None:
        at = np.unique(pointers.data[mask.data])
        each = pointers.get_element_ty().primitive_bitwidth // 8
        for number, (begin, length) in enumerate(spans):
            moved[running[-1]][kind, number] += each * int(((at >= begin) & (at < begin + length)).sum())

    def loading(pointers: Any, mask: Any, *rest: Any) -> Any:
        count("load", pointers, mask)
        return load(pointers, mask, *rest)

    def storing(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        count("store", pointers, mask)
        return store(pointers, value, mask, *rest)

    def scratched(self: Any, wide: bool = False) -> torch.Tensor:
        kept.append(scratch(self, wide))
        spans.append((kept[-1].data_ptr(), kept[-1].nbytes))
        return kept[-1]

    with (
        patch.object(Parts, "scratch", scratched),
        patch.object(InterpretedFunction, "run", named),
        patch.object(builder, "create_masked_load", loading),
        patch.object(builder, "create_masked_store", storing),
    ):
        call()
    return {
        kernel: sum(counts.values()) / sum(spans[number][1] for (_, number), count in counts.items() if count)
        for kernel, counts in moved.items()
        if any(counts.values())
    }


def found() -> dict[str, float]:
    """By case and kernel."""
    cases = calls.Workload(sumwire.Lattice(2), SIZE, "cpu").lattice_cases() + calls.sparse_cases(SIZE, "cpu")
    large = calls.Workload(sumwire.Lattice(2, block=LARGE), 2 * LARGE, "cpu").lattice_cases()
    work: list[tuple[str, Callable[[], object]]] = [(case.name, case.call) for case in cases]
    work += [(f"{case.name}, large", case.call) for case in large]
    return {f"{name}: {kernel}": ratio for name, call in work for kernel, ratio in passes(call).items()}


def test_no_kernel_goes_over_memory_more_than_once() -> None:
    ratios = found()
    assert len(ratios) >= 38
    assert {name: ratio for name, ratio in ratios.items() if ratio > MOST} == {}


if __name__ == "__main__":
    for name, ratio in found().items():
        print(f"{name:55} {ratio:.2f}")
