"""Collectives between real processes give what `average` gives in one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sumwire import ConfigError, Lattice, Residual, average, kernels
from sumwire.aggregate.collective import Collective
from sumwire.kernels import reference
from tests import ranks

SIZES = [0, 1, 7, 63, 513, 5000] if kernels.backend() is reference else [0, 1, 7, 63, 513, 5000, 300_001]


def gradient(rank: int, size: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng((seed, rank, size))
    scale = np.exp(rng.standard_normal(size // 700 + 1)).repeat(700)[:size]
    return (rng.standard_normal(size) * scale).astype(np.float32)


def averages(rank: int, n: int, algorithm: Any, codec: Lattice) -> list[NDArray[np.float32]]:
    with Collective(codec, algorithm=algorithm) as group:
        tensors = [torch.from_numpy(gradient(rank, size)) for size in SIZES]
        # All at once, so that rounds overlap.
        futures = [group.average_async(t, round_id=k) for k, t in enumerate(tensors)]
        return [future.wait().numpy() for future in futures]


@pytest.mark.parametrize("algorithm", ["sharded", "lanes"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_rank_gets_the_bits_of_average(n: int, algorithm: str) -> None:
    codec = Lattice(n, 4, feedback=n % 2 == 0)
    results = ranks.run(n, averages, algorithm, codec)
    for k, size in enumerate(SIZES):
        inputs = [gradient(rank, size) for rank in range(n)]
        expected = inputs[0] if n == 1 else average(codec, inputs, round_id=k)
        for result in results:
            np.testing.assert_array_equal(result[k], expected)
