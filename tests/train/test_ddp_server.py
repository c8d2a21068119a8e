"""DDP over the parameter server between real processes: the same bits as without it."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import numpy as np
import pytest
import torch

from sumwire import ConfigError, Server, Sparse, connect
from sumwire.train import State, attach
from tests import ranks
from tests.train.test_ddp import build, train

Weights = list[np.ndarray[Any, Any]]


def trained(rank: int, world: int, server: str | None, options: dict[str, Any]) -> Weights:
    model = build()
    state = attach(model, warmup=1, fallback=False, exact_below=100, server=server, **options)
    train(rank, model, range(6))
    state.close()
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


@pytest.mark.parametrize("options", [{"bits": 4}, {"bits": 2, "feedback": True}, {"codec": "sparse"}], ids=str)
def test_the_server_gives_the_bits_of_the_process_group(options: dict[str, Any]) -> None:
    with Server(workers=2, shards=2) as server:
        over_server = ranks.run(2, trained, server.address, options)
    # By force: small rounds would go the plain way.
    alone = ranks.run(2, trained, None, options | {"algorithm": options.get("codec", "sharded")})
    for mine, other, expected in zip(*over_server, alone[0], strict=True):
        np.testing.assert_array_equal(mine, other)
        np.testing.assert_array_equal(mine, expected)


def over_a_link(rank: int, world: int, server: str) -> tuple[Weights, float]:
    with connect(server, rank=rank, workers=world, token="secret") as link:
        model = build()
        state = attach(model, warmup=1, fallback=False, exact_below=100, server=link)
        train(rank, model, range(6))
        state.close()
        after = link.average(np.full(5, rank, np.float32), codec=Sparse(world))  # it is still open
        return [parameter.detach().numpy().copy() for parameter in model.parameters()], float(after[0])


def test_a_link_of_ones_own_is_used_and_left_open() -> None:
    with Server(workers=2, token="secret") as server:
        (mine, after), (other, _) = ranks.run(2, over_a_link, server.address)
    assert after == 0.5
    for one, two in zip(mine, other, strict=True):
        np.testing.assert_array_equal(one, two)


def not_a_number(rank: int, world: int, server: str) -> list[bool]:
    model = build()
    attach(model, warmup=0, fallback=False, server=server).start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    out = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 20)).square().mean()
        (loss * (float("nan") if rank == 1 and step == 1 else 1.0)).backward()
        out.append(any(bool(p.grad.isnan().any()) for p in model.parameters() if p.grad is not None))
    return out


def test_nan_is_seen_by_all_ranks_and_harms_no_later_step() -> None:
    with Server(workers=2) as server:
        assert ranks.run(2, not_a_number, server.address) == [[False, True, False]] * 2


def sampled(rank: int, world: int, server: str) -> list[float]:
    model, told = build(), []
    log = lambda name, value, _: told.append(value) if name == "sumwire/nmse" else None  # noqa: E731
    state = attach(model, warmup=0, fallback=False, exact_below=0, sample_every=2, log=log, server=server)
    train(rank, model, range(5))
    state.close()
    return told


def test_the_page_shows_the_error_of_sampled_steps() -> None:
    with Server(workers=2, http_port=0) as server:
        told, _ = ranks.run(2, sampled, server.address)
        assert len(told) == 3
        assert server.observatory is not None
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with urllib.request.urlopen(f"{server.observatory.url}stats") as answer:
                jobs = json.load(answer)["jobs"]
            if jobs and jobs["default"]["nmse"] == pytest.approx(np.mean(told)):
                return
            time.sleep(0.1)
        pytest.fail(f"steps had errors {told}, the page has {jobs}")


def resynced(rank: int, world: int) -> list[float]:
    model = build()
    attach(model, resync=2, warmup=1, fallback=False)
    train(rank, model, range(3))
    with torch.no_grad():
        model.module.head.bias += rank  # as if a rank had missed an update
    train(rank, model, range(3, 5))
    return model.module.head.bias.detach().tolist()


def test_resync_makes_ranks_equal_again() -> None:
    first, second = ranks.run(2, resynced)
    assert first == second


@pytest.mark.parametrize("options", [{"algorithm": "lanes"}, {"codec": "auto"}], ids=str)
def test_options_that_decide_the_same_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="server"):
        State(server="127.0.0.1:1", **options)
