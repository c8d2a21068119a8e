"""The matrix in training: gradients of DDP and FSDP2 have the bits of `sumwire.average` over the ranks' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sumwire import Codec, Lattice, Sketch, Sparse, average
from sumwire.codec.adaptive import Adaptive
from sumwire.train import attach
from sumwire.train.ddp.round import Part
from sumwire.train.fsdp.collective import round_id
from tests import ranks
from tests.aggregate.test_matrix_kinds import mixed

SIZE, STEPS = 30_000, 2
Floats = NDArray[np.float32]


class Weighted(nn.Module):
    """The gradient of its weight is whatever it is called with."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def gradient(name: str, rank: int, step: int) -> Floats:
    """Mostly zeros but for lattices; "auto" chooses the codec in each step anew."""
    rng = np.random.default_rng((rank, step))
    x = rng.standard_normal(SIZE).astype(np.float32)
    if name in ("sparse", "sketch") or (name == "auto" and step):
        x *= rng.random(SIZE) < 0.02
    return x


def codec_of(name: str, rank: int, n: int) -> Codec:
    if name == "lattice":
        return Lattice(n, 3, seed=7)
    if name == "mixed":
        return Lattice(n, 4, seed=7).with_bits(2 + rank % 3)
    lattice = Lattice(n, 4, energy=0.5, seed=7)
    return {"sparse": Sparse(n, seed=7), "sketch": Sketch(n, seed=7), "auto": Adaptive(lattice, Sparse(n, seed=7))}[
        name
    ]


DDP = ("lattice", "mixed", "sparse", "sketch", "auto")
FSDP = ("lattice", "sparse")


def options(name: str, rank: int, n: int) -> dict[str, Any]:
    return {"codec": codec_of(name, rank, n) if name in ("lattice", "mixed") else name, "seed": 7}


def trained(rank: int, n: int) -> dict[str, list[Any]]:
    """For each codec, every step's gradient and the number that decided its random numbers."""
    found: dict[str, list[Any]] = {}
    for name in DDP:
        model = DistributedDataParallel(Weighted())
        state = attach(
            model,
            warmup=0,
            fallback=False,
            exact_below=0,
            algorithm="sharded",
            sample_every=0,
            **options(name, rank, n),
        )
        found[f"ddp {name}"] = []
        for step in range(STEPS):
            model.zero_grad()
            model(torch.from_numpy(gradient(name, rank, step))).backward()
            number = state.start().ids.noise(0, Part.SPAN)
            found[f"ddp {name}"].append((number, model.module.weight.grad.numpy().copy()))
        state.close()
    for name in FSDP:
        sharded = fully_shard(Weighted())
        attach(sharded, **options(name, rank, n))
        found[f"fsdp {name}"] = []
        for step in range(STEPS):
            sharded.zero_grad()
            sharded(torch.from_numpy(gradient(name, rank, step))).backward()
            found[f"fsdp {name}"].append(sharded.weight.grad.full_tensor().numpy().copy())
    return found


def expected(name: str, n: int, step: int, number: int, row: slice | None = None) -> Floats:
    """Of a row, whose sum stays where it is, or of all."""
    xs = [gradient(name, rank, step)[row or slice(None)] for rank in range(n)]
    codecs = [codec_of(name, rank, n) for rank in range(n)]
    if row:
        codecs = [codec.for_plain_sums() if isinstance(codec, Lattice) else codec for codec in codecs]
    mean: Floats = mixed(codecs, xs, number) if name == "mixed" else average(codecs[0], xs, round_id=number)
    return mean


@pytest.mark.parametrize("n", [2, 3])
def test_ddp_and_fsdp(n: int) -> None:
    results = ranks.run(n, trained)
    for name in DDP:
        for step in range(STEPS):
            right = expected(name, n, step, results[0][f"ddp {name}"][step][0])
            for result in results:
                np.testing.assert_array_equal(result[f"ddp {name}"][step][1], right, err_msg=f"{name}, step {step}")
    for name in FSDP:
        for step in range(STEPS):
            rows = [slice(r * SIZE // n, (r + 1) * SIZE // n) for r in range(n)]
            numbers = [round_id(step, 0, r) for r in range(n)]
            means = [expected(name, n, step, k, row) for k, row in zip(numbers, rows, strict=True)]
            for result in results:
                np.testing.assert_array_equal(result[f"fsdp {name}"][step], np.concatenate(means), err_msg=name)
