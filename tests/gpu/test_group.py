"""Payloads that stay torch tensors all the way, over a gloo group in place of NCCL: the bits of the host's path."""

from __future__ import annotations

import os
import threading
from itertools import chain
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sumwire import Lattice, Sparse, average
from sumwire.aggregate.group.communicator import Communicator
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.statistics import Statistics
from sumwire.kernels import backend
from sumwire.train import attach
from sumwire.train.fsdp import reduce_scatter
from sumwire.train.rounds import TensorRound
from tests import ranks

pytest.importorskip("triton", reason='Triton is not installed: pip install ".[gpu]"')

SIZE = 2 * 64 + 8  # whole blocks, and a smaller one: the interpreter is slow
CODECS: list[tuple[dict[str, Any], tuple[torch.dtype, ...]]] = [
    ({"block": 64}, (torch.float32, torch.bfloat16)),
    ({"block": 64, "down_bits": "exact"}, (torch.float32,)),
]


def use(kernels: str) -> None:
    """Kernels of this process from now on."""
    os.environ["SUMWIRE_KERNELS"] = kernels
    backend._wanted.cache_clear()
    backend._has_triton.cache_clear()
    backend.name.cache_clear()


def interpret_in_turn() -> None:
    """Triton's interpreter patches its language while it runs a kernel, so rounds in flight must not overlap there."""
    from triton.runtime.interpreter import InterpretedFunction

    lock, run = threading.Lock(), InterpretedFunction.run

    def in_turn(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return run(*args, **kwargs)

    InterpretedFunction.run = in_turn


def gradient(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank)).to(dtype)


def rounds(rank: int, n: int) -> list[Any]:
    """Means by dtype and codec; then gradients of a model by kernels; and the kinds of what was sent."""
    use("triton")
    interpret_in_turn()
    kinds, sent = [], Communicator.all_to_all

    def watched(self: Communicator, outbox: Any, *args: Any) -> int:
        kinds.append(type(outbox).__name__)
        return sent(self, outbox, *args)

    Communicator.all_to_all = watched  # type: ignore[method-assign]
    means = []
    for options, dtypes in CODECS:
        with Group(Lattice(n, 4, **options), algorithm="sharded") as group:
            for dtype in dtypes:
                x = gradient(rank, dtype)
                mean = group.average(x, round_id=3, out=x if dtype == torch.float32 else None)
                assert mean.dtype == dtype
                means.append(mean.float().numpy())
            means.append(group.average(torch.full((SIZE,), float("inf")), round_id=5).numpy())
            if "down_bits" not in options:
                means.append(exactly(group, rank))
                means.append(over_collectives(group, rank))
                means.append(through_the_host(group, rank))
    kernels = trained(rank, "triton"), sharded(rank, "triton")
    found = [means, kernels, list(kinds), (trained(rank, "auto"), sharded(rank, "auto"))]
    return [*found, without_loss(rank)]


def without_loss(rank: int) -> Any:
    """A sparse tensor, whose payload alone goes through the host."""
    use("triton")
    x = gradient(rank, torch.float32).relu()
    with Group(Sparse(2)) as group:
        job = TensorRound(group, x, group.codec, round_id=6, statistics=Statistics())
        assert job._stays
        assert job.run() is x
    return x.numpy()


def exactly(group: Group, rank: int) -> Any:
    """As on a GPU that the group's backend reaches: where the tensor lies, and in the order of payloads."""
    used, plain = [], Communicator.all_reduce

    def watched(self: Communicator, tensor: torch.Tensor) -> int:
        used.append(self)
        return plain(self, tensor)

    x = gradient(rank, torch.float32)
    with patch.object(group, "sums_on", lambda device: True), patch.object(Communicator, "all_reduce", watched):
        job = TensorRound(group, x, None, round_id=4, statistics=Statistics())
        with patch.object(torch.Tensor, "cpu", None):
            assert job.run() is x
    assert used == [group._adding]
    return x.numpy()


def over_collectives(group: Group, rank: int) -> Any:
    """By torch's own all-to-all and all-gather, as with NCCL, instead of gloo's messages."""
    group._adding._few = group._adding._point_to_point = False
    return group.average(gradient(rank, torch.float32), round_id=3).numpy()


def through_the_host(group: Group, rank: int) -> Any:
    """As if the tensor were on a device that the group's backend cannot reach."""
    group._adding._few = group._adding._point_to_point = True
    group._adding.device = torch.device("cuda")
    return group.average(gradient(rank, torch.float32), round_id=3).numpy()


def trained(rank: int, kernels: str) -> list[np.ndarray[Any, Any]]:
    """Gradients under DDP, of two steps with error feedback; the bias is averaged exactly."""
    use(kernels)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(63, 16))
    state = attach(model, 2, seed=1, algorithm="sharded", exact_below=16, warmup=0, fallback=False, feedback=True)
    x = torch.randn(8, 63, generator=torch.Generator().manual_seed(rank))
    for _ in range(2):
        model(x).square().sum().backward()
    held = state.state_dict()["buckets"][0]["residuals"][0]["value"]
    state.close()
    return [parameter.grad.numpy() for parameter in model.parameters()] + [held.numpy()]


def sharded(rank: int, kernels: str) -> list[np.ndarray[Any, Any]]:
    """This rank's gradients under FSDP2, in a unit so small that compressing it would not pay."""
    use(kernels)
    reduce_scatter.shard_pays = lambda *_: True
    torch.manual_seed(0)
    model = torch.nn.Linear(63, 2)
    fully_shard(model)
    state = attach(model, 4, seed=1, feedback=True)
    x = torch.randn(8, 63, generator=torch.Generator().manual_seed(rank))
    for _ in range(2):
        model(x).square().sum().backward()
    [group] = [peers.group for peers in state._peers]
    assert (group._terms is group._adding) == (kernels == "triton")
    state.close()
    return [parameter.grad.to_local().numpy() for parameter in model.parameters()]


def test_tensors_stay_where_they_are() -> None:
    results = ranks.run(2, rounds)
    lossless = average(Sparse(2), [gradient(rank, torch.float32).relu().numpy() for rank in range(2)], round_id=6)
    for means, on_device, kinds, on_host, sparse in results:
        np.testing.assert_array_equal(sparse, lossless)
        # The one array is what was copied to the host because the device seemed out of reach.
        assert kinds.count("ndarray") == 1
        assert set(kinds) == {"Tensor", "ndarray"}
        expected = []
        for options, dtypes in CODECS:
            codec = Lattice(2, 4, **options)
            for dtype in dtypes:
                inputs = [gradient(rank, dtype) for rank in range(2)]
                expected.append(average(codec, inputs, round_id=3).float().numpy())
            expected.append(np.full(SIZE, np.inf, np.float32))
            if "down_bits" not in options:
                plain = sum(gradient(rank, torch.float32) / 2 for rank in range(2))
                expected += [plain.numpy(), expected[0], expected[0]]
        for mean, right in zip(means, expected, strict=True):
            np.testing.assert_array_equal(mean, right)
        for mine, right in zip(chain(*on_device), chain(*on_host), strict=True):
            np.testing.assert_array_equal(mine, right)
            assert np.abs(mine).max() > 0
