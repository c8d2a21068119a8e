"""Program instances may run in any order: what one writes, no other reads or writes.

The interpreter runs them one after another, so this finds dependence on order, but no race within a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch

from sumwire import Lattice
from sumwire.kernels.lattice import reference
from sumwire.kernels.lattice.scheme import Keys
from tests.gpu.cases import Case, held, same

pytest.importorskip("triton", reason='Triton is not installed: pip install ".[gpu]"')
kernels = pytest.importorskip("sumwire.kernels.triton.lattice")
sparse = pytest.importorskip("sumwire.kernels.triton.sparse")

KEYS = Keys(11, 12, 13, 14)


@contextmanager
def shuffled(seed: int) -> Iterator[None]:
    """Programs of every launch in a random order."""
    from triton.runtime.interpreter import interpreter_builder as builder

    rng, plain, orders = np.random.default_rng(seed), builder.set_grid_idx, {}

    def place(x: int, y: int, z: int) -> None:
        count = builder.grid_dim[0]
        if x == 0:
            orders[count] = rng.permutation(count)
        plain(int(orders[count][x]), y, z)

    with patch.object(builder, "set_grid_idx", place):
        yield
    assert orders, "no program ran"


@pytest.mark.parametrize(("block", "whole"), [(64, 17), (1 << 12, 1)])
def test_lattice_kernels(block: int, whole: int) -> None:
    seed = 1
    case = Case(Lattice(2, 5, block=block), 2048 + 13, whole, "float32", 0, seed)
    payload, lanes = case.payload(KEYS), case.lanes(KEYS)
    mean, out = np.empty(case.size, np.float32), torch.full((case.size,), np.nan)
    decoded = case.counts, case.scales, case.classes, KEYS.sign
    reference.decode(case.scheme, lanes, *decoded, mean, 0, case.blocks)
    left, residual = np.empty(case.size, np.float32), torch.full((case.size,), np.nan)
    terms = case.scales, case.classes, case.widths, KEYS
    reference.encode(case.scheme, case.x, *terms, payload, left, 0, case.blocks)
    found, sums = torch.zeros(len(payload), dtype=torch.uint8), torch.zeros(len(lanes), dtype=torch.uint8)
    packed = torch.zeros(case.packed_bytes, dtype=torch.uint8)
    with shuffled(seed):
        kernels.encode(case.scheme, case.tensor, *terms, found, residual, 0, case.blocks)
        kernels.add(case.scheme, case.size, case.classes, sums, [(found, case.widths)], True, 0, case.blocks)
        kernels.pack_lanes(case.scheme, case.size, case.classes, sums, packed, 0, case.blocks)
        again = torch.zeros_like(sums)
        kernels.unpack_lanes(case.scheme, case.size, case.classes, packed, again, 0, case.blocks)
        kernels.decode(case.scheme, sums, *decoded, out, 0, case.blocks)
    assert same(found, payload)
    assert same(residual, left)
    assert same(out, mean)
    assert same(sums, lanes)
    assert same(again, lanes)


def test_sparse_kernels() -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(9000) * (rng.random(9000) < 0.3)).astype(np.float32)
    starts = np.arange(0, len(x), 256, dtype=np.int64)
    words, values, out = torch.zeros(-(-len(x) // 64), dtype=torch.int64), torch.zeros(len(x)), torch.ones(len(x))
    with shuffled(4):
        count = sparse.gather(held(x), starts, 256, words, values)
        sparse.expand(words, values[:count], starts, 256, out)
    assert same(out, x)
