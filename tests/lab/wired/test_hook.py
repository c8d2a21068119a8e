"""Peers and bfloat16 as communication hooks of DDP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sumwire.lab.peers import PEERS
from sumwire.lab.wired import PeerHook, bf16_hook
from sumwire.lab.wired.hook import WARMUP
from tests.ranks import outcomes_of, run

RANKS, STEPS, WIDTH = 2, 4, 40
Floats = NDArray[np.float32]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False))


def gradients(found: nn.Module, step: int, rank: int) -> list[Tensor]:
    """Of a worker's batch in a step, which are known without training: weights stay."""
    found.zero_grad()
    inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
    found(inputs).square().sum().backward()
    return [parameter.grad.clone() for parameter in found.parameters() if parameter.grad is not None]


def averaged(rank: int, ranks: int, name: str) -> tuple[list[list[Floats]], list[float], float]:
    """Gradients after the hook by step, bytes sent by step, and the codec's seconds."""
    if name == "bf16":
        wrapped = DistributedDataParallel(model())
        wrapped.register_comm_hook(None, bf16_hook)
        return [_arrays(gradients(wrapped, step, rank)) for step in range(STEPS)], [], 0.0
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=1000)
    hook = PeerHook(name, seed=3)
    hook.attach(wrapped)
    found, sent = [], []
    for step in range(STEPS):
        found.append(_arrays(gradients(wrapped, step, rank)))
        sent.append(hook.sent)
    hook.close()
    return found, sent, hook.seconds


def _arrays(tensors: list[Tensor]) -> list[Floats]:
    # Tensors would go through memory that ends with the rank.
    return [tensor.numpy() for tensor in tensors]


def means(step: int) -> list[Tensor]:
    own = [gradients(model(), step, rank) for rank in range(RANKS)]
    return [torch.stack(parts).mean(0) for parts in zip(*own, strict=True)]


def test_a_peer_averages_weights_after_the_warmup_and_biases_exactly() -> None:
    """By the simulation's mean, in the order that DDP has put gradients in: the last layer first."""
    for found, sent, seconds in run(RANKS, averaged, "loco-4-4"):
        values = 2 * WIDTH * WIDTH
        peer: Any = PEERS["loco-4-4"](RANKS, values, seed=3)
        for step in range(STEPS):
            first, bias, second = map(torch.from_numpy, found[step])
            torch.testing.assert_close(bias, means(step)[1])
            if step < WARMUP:
                torch.testing.assert_close([first, second], [means(step)[0], means(step)[2]])
                continue
            own = [gradients(model(), step, rank) for rank in range(RANKS)]
            expected = peer.average([torch.cat([part[2].flatten(), part[0].flatten()]).numpy() for part in own]).mean
            assert np.array_equal(torch.cat([second.flatten(), first.flatten()]).numpy(), expected)
            assert 0 < (second - means(step)[2]).norm() < 0.2 * second.norm()
        # Half of each tensor goes up and half of the mean comes down: 4.125 bits, and the bias in a ring of fp32.
        assert sent[0] == 4 * (values + WIDTH)
        assert sent[-1] == pytest.approx(8.25 / 16 * values + 4 * WIDTH, rel=0.02)
        assert seconds > 0


def test_bf16_means_are_means_of_rounded_gradients_and_have_its_bits() -> None:
    for found, _, _ in run(RANKS, averaged, "bf16"):
        for step in range(STEPS):
            for mean, exact in zip(map(torch.from_numpy, found[step]), means(step), strict=True):
                assert torch.equal(mean, mean.bfloat16().float())
                torch.testing.assert_close(mean, exact, rtol=2**-7, atol=2**-6 * float(exact.abs().max()))
                assert not torch.equal(mean, exact)


def several_buckets(rank: int, ranks: int) -> None:
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.001)  # type: ignore[arg-type]
    PeerHook("qgz-4").attach(wrapped)
    for step in range(2):
        gradients(wrapped, step, rank)


def test_several_buckets_are_refused() -> None:
    for _, error in outcomes_of(1, several_buckets):
        assert "averages all gradients at once, and DDP made several buckets" in error


def poisoned(rank: int, ranks: int) -> list[bool]:
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=1000)
    hook = PeerHook("mxfp4")
    hook.attach(wrapped)
    found = []
    for step in range(STEPS):
        wrapped.zero_grad()
        inputs = torch.full((1, WIDTH), torch.inf if step == STEPS - 1 and rank == 1 else 1.0)
        wrapped(inputs).sum().backward()
        found.append(all(bool(p.grad.isnan().all()) for p in wrapped.parameters() if p.grad is not None and p.ndim > 1))
    hook.close()
    return found


def test_one_rank_with_infinite_gradients_makes_those_of_all_nan() -> None:
    assert run(RANKS, poisoned) == [[False] * (STEPS - 1) + [True]] * RANKS
