"""What users catch when a round fails inside of a backward pass."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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
    outcomes = ranks.outcomes_of(3, run_dying, ddp, timeout=60, group=10)
    assert "died" in outcomes[1][1]
    for rank in (0, 2):
        said = outcomes[rank][1]
        assert "SAID [" in said, said
        first, _, then = said.partition("SAID")[2].partition("unusable since an earlier error")
        assert "another rank has died" in first, said
        assert then, said  # the second backward got as far as the hook: DDP itself still works
