"""What users catch when a round fails inside of a backward pass."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import sumwire
from sumwire.train import attach
from tests import ranks


def build(**ddp: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(40, 200), nn.Linear(200, 8)), **ddp)


def run_dying(rank: int, n: int, ddp: dict[str, Any]) -> list[str]:
    model = build(**ddp)
    attach(model, bits=4, fallback=False, warmup=0, algorithm="sharded", sample_every=0)
    x = torch.randn(4, 40)
    before = [p.detach().clone() for p in model.parameters()]
    said = []
    for _ in range(2):  # after which DDP has rebuilt its buckets
        model(x).square().mean().backward()
    for _ in range(2):
        loss = model(x).square().mean()
        if rank == 1:
            os._exit(7)
        try:
            loss.backward()
        except sumwire.RoundError as error:
            said.append(str(error))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    raise RuntimeError(f"SAID {said}")  # instead of returning, as the group is broken


@pytest.mark.parametrize("ddp", [{}, {"bucket_cap_mb": 0.001}, {"static_graph": True}])
def test_a_dead_peer_is_a_round_error_and_leaves_ddp_usable(ddp: dict[str, Any]) -> None:
    outcomes = ranks.outcomes_of(3, run_dying, ddp)
    assert "died" in outcomes[1][1]
    for rank in (0, 2):
        said = outcomes[rank][1]
        assert "SAID [" in said, said
        first, _, then = said.partition("SAID")[2].partition("unusable since an earlier error")
        assert "another rank has died" in first, said
        assert then, said  # the second backward got as far as the hook: DDP itself still works


class Deep(nn.Module):
    """Checkpointed modules, whose backward passes run within the backward pass; and one that may go unused."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(60, 60), nn.ReLU()) for _ in range(4)])
        self.head = nn.Linear(60, 3)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor, blocks: int = 4) -> torch.Tensor:
        for block in self.blocks[:blocks]:
            x = checkpoint(block, x, use_reentrant=True) if self.reentrant else block(x)
        out: torch.Tensor = self.head(x)
        return out


def run_reentrant(rank: int, n: int) -> list[Any]:
    from sumwire.train.ddp.verdict import Verdict

    Verdict.judge = lambda self, figures, step, *, say: setattr(self, "measured_at", step)  # type: ignore[method-assign]
    found = []
    for reentrant in (False, True):
        model = DistributedDataParallel(Deep(reentrant=reentrant), bucket_cap_mb=0.01)
        state = attach(model, bits=8, warmup=1, algorithm="sharded", seed=0)
        for step in range(4):
            model.zero_grad()
            x = torch.randn(8, 60, generator=torch.Generator().manual_seed(10 * step + rank)).requires_grad_()
            model(x).square().mean().backward()
        grads = [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]
        found.append((state.step, state._verdict.measured_at, state.statistics.values, grads))
    return found


def test_checkpointed_modules() -> None:
    (plain, nested), (other, _) = ranks.run(2, run_reentrant)
    assert plain[:2] == nested[:2] == (4, 1)
    assert plain[2] == sum(grad.size for grad in plain[3])  # small tensors count once
    for a, b, c in zip(plain[3], nested[3], other[3], strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def run_unused(rank: int, n: int) -> str:
    model = DistributedDataParallel(Deep(reentrant=False), bucket_cap_mb=0.01)
    attach(model, bits=8, warmup=0, fallback=False, algorithm="sharded")
    x = torch.ones(8, 60)
    for blocks in (4, 4, 3):
        model(x, blocks).square().mean().backward()
    try:
        model(x)
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_parameters_that_go_unused_are_left_to_ddp_to_complain_about() -> None:
    for said in ranks.run(2, run_unused):
        assert "find_unused_parameters=True" in said


def run_dying_in_a_probe(rank: int, n: int) -> None:
    from sumwire.train.ddp import verdict

    model = build()
    attach(model, bits=4, warmup=1, algorithm="sharded", sample_every=0)
    x, said = torch.randn(4, 40), []
    for _ in range(2):
        if rank == 1:
            verdict.perf_counter = lambda: os._exit(7)  # type: ignore[assignment]
        try:
            model(x).square().mean().backward()
        except sumwire.RoundError as error:
            said.append(str(error))
    try:
        model(x).square().mean().backward()
    except sumwire.RoundError as error:
        said.append(str(error))
    raise RuntimeError(f"SAID {said}")


def test_a_peer_that_dies_while_ranks_measure() -> None:
    outcomes = ranks.outcomes_of(2, run_dying_in_a_probe)
    assert "died" in outcomes[1][1]
    assert "another rank has died" in outcomes[0][1]
    assert "unusable since an earlier error" in outcomes[0][1]
