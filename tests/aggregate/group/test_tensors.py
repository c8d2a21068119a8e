"""Whatever floats a rank has, NumPy's or torch's, in whatever memory: the mean comes back as they are."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from sumwire import Lattice, Sparse, average
from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.round import Round
from tests import ranks
from tests.aggregate.group.inputs import gradient, register_sum_only

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SHAPES = [(), (0,), (3, 0), (1,), (6, 50), (5, 4, 3, 2)]
LAYOUTS = [(shape, True) for shape in SHAPES] + [(shape, False) for shape in SHAPES[-2:]]
"""Shapes, and whether tensors are contiguous, which those of one value or none always are."""


def tensor(rank: int, shape: tuple[int, ...], dtype: torch.dtype, contiguous: bool) -> torch.Tensor:
    size = int(np.prod(shape))
    x = torch.from_numpy(gradient(rank, size)).to(dtype).view(shape)
    if contiguous:
        return x
    scattered = torch.zeros(*shape, 2, dtype=dtype)[..., 1]
    scattered.copy_(x)
    return scattered


def codecs(n: int) -> list[Any]:
    """A lattice, a lossless codec, and none at all: the exact mean."""
    return [Lattice(n, 8, block=64), Sparse(n), None]


def kinds(rank: int, n: int, sum_only: bool) -> None:
    """Every rank compares by itself."""
    with Group(Lattice(n, 8), backend=register_sum_only() if sum_only else None) as group:
        for number, codec in enumerate(codecs(n)):
            for dtype in DTYPES:
                for shape, contiguous in LAYOUTS:
                    compare(group, codec, number, dtype, shape, contiguous)


def compare(
    group: Group, codec: Any, round_id: int, dtype: torch.dtype, shape: tuple[int, ...], contiguous: bool
) -> None:
    def run(x: Any, out: Any = None) -> Any:
        return Round(group, x, codec, round_id=round_id, out=out).run()

    own = tensor(group.rank, shape, dtype, contiguous)
    before, mean = own.clone(), run(own)
    assert torch.equal(own, before)
    assert (mean.dtype, mean.shape) == (dtype, shape)
    truth = torch.stack([tensor(rank, shape, dtype, True).double() for rank in range(group.workers)]).mean(0)
    scale = float(truth.abs().max()) if truth.numel() else 0.0
    error = 0.05 if isinstance(codec, Lattice) else torch.finfo(dtype).eps if dtype != torch.float64 else 1e-6
    assert torch.allclose(mean.double(), truth, rtol=2 * error, atol=2 * error * scale + 1e-30)

    leaf = own.clone().requires_grad_()
    for x, out in ((own, torch.empty_like(own)), (leaf, leaf), (own, torch.zeros(*shape, 2, dtype=dtype)[..., 0])):
        assert run(x, out) is out
        assert torch.equal(out.detach(), mean)
    again = tensor(group.rank, shape, dtype, contiguous)
    assert run(again, again) is again
    assert torch.equal(again, mean)
    compare_arrays(run, before, mean)


def compare_arrays(run: Any, own: torch.Tensor, mean: torch.Tensor) -> None:
    """The same from NumPy, and between NumPy and torch."""
    bits = (lambda t: t.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)) if own.dtype == torch.bfloat16 else (
        lambda t: t.numpy()
    )  # fmt: skip
    array, expected = bits(own.clone()), bits(mean)
    found = run(array)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(array, bits(own))
    out = np.empty_like(array)
    assert run(array, out) is out
    np.testing.assert_array_equal(out, expected)
    there = torch.empty_like(mean)
    assert run(array, there) is there
    assert torch.equal(there, mean)
    array.flags.writeable = False
    np.testing.assert_array_equal(run(array), expected)
    spread = np.zeros((*array.shape, 2), array.dtype)[..., 1]
    for mine in (array.copy(), spread):
        mine[...] = array
        assert run(mine, mine) is mine
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("sum_only", [False, True])
def test_every_kind_dtype_and_shape(sum_only: bool) -> None:
    ranks.run(2, kinds, sum_only)


def lists(rank: int, n: int) -> Any:
    with Group(Lattice(n, 8)) as group:
        return group.average([1.0, 2.0, 3.0 * rank], round_id=3)


def test_a_list_is_an_array() -> None:
    xs = [np.array([1.0, 2.0, 3.0 * rank]) for rank in range(2)]
    for mean in ranks.run(2, lists):
        np.testing.assert_array_equal(mean, average(Lattice(2, 8), xs, round_id=3))


def plain(rank: int, n: int) -> tuple[Any, int, int]:
    work = Workspace()
    with Group(Lattice(n, 8)) as group:
        mean = group.average_exactly(gradient(rank, 1000), round_id=0, workspace=work)
    return mean, work.statistics.sent, len(mean)


def test_an_exact_mean_has_the_bits_of_ddp() -> None:
    xs = [gradient(rank, 1000) * np.float32(1 / 2) for rank in range(2)]
    for mean, sent, size in ranks.run(2, plain):
        np.testing.assert_array_equal(mean, xs[0] + xs[1])
        assert sent == 4 * size  # of a ring between two ranks
